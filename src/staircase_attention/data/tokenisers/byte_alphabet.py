"""How byte-level tokenisers write bytes: each as one printable character.

GPT-2 brought this in: a byte that is a printable character of Latin-1 stands for itself, the other
68 are the characters from U+0100 on, in order. So every text is a text over 256 characters.
"""

PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


def character_of_byte() -> dict[int, str]:
    r"""The character for each byte.

    >>> alphabet = character_of_byte()
    >>> alphabet[ord("a")], alphabet[ord(" ")], alphabet[ord("\n")], len(set(alphabet.values()))
    ('a', 'Ġ', 'Ċ', 256)
    """
    others = (byte for byte in range(256) if byte not in PRINTABLE)
    alphabet = {byte: chr(byte) for byte in PRINTABLE}
    return alphabet | {byte: chr(0x100 + number) for number, byte in enumerate(others)}


BYTE_OF_CHARACTER = {character: byte for byte, character in character_of_byte().items()}


def bytes_of(token: str) -> bytes:
    """What a token stands for; a token that is not over this alphabet stands for itself.

    >>> bytes_of("Ġdog"), bytes_of("<| end |>")
    (b' dog', b'<| end |>')
    """
    try:
        return bytes(BYTE_OF_CHARACTER[character] for character in token)
    except KeyError:
        return token.encode()
