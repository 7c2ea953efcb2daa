"""Recurrent attention models: the Staircase family, exact, streaming, with state you can trust."""
