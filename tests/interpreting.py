"""Triton's interpreter, which runs kernels without a GPU: two errors fixed, and made faster.

What a kernel writes stays the same to the bit (only the sign of NaN may be another), and mistakes
in types and shapes are found where the interpreter finds them.
"""

import functools
import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np


def interpret_kernels() -> None:
    """Run kernels in Triton's interpreter. Call this before any kernel is defined."""
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        from triton.runtime import interpreter
    except ImportError:
        return
    fix_errors(interpreter)
    cache_lookups(interpreter)
    cache_types(interpreter)
    shorten_steps(interpreter)
    sum_by_arrays(interpreter)
    operate_directly(interpreter)


def sum_by_arrays(interpreter: Any) -> None:
    """Sum several tensors as arrays: the interpreter goes number by number."""
    operations = interpreter.ReduceOps
    reduce = operations.generic_reduce

    def reduce_soon(self: Any, parts: Any) -> Any:
        if self.combine_fn.fn.__name__ != "add_four":
            return reduce(self, parts)
        return [self.to_tensor(one.handle.data.sum(self.axis), one.dtype) for one in parts]

    operations.generic_reduce = reduce_soon


def fix_errors(interpreter: Any) -> None:
    """Fix two errors of Triton 3.6's interpreter."""
    tl = interpreter.tl
    patch_tensors = interpreter._patch_lang_tensor
    multiply = interpreter.InterpreterBuilder.create_dot

    def patch_more(tensor: Any, scope: Any) -> None:
        # With numpy 2.4 its own numbers cannot be bounds of loops.
        patch_tensors(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def multiply_wide(self: Any, left: Any, right: Any, *others: Any) -> Any:
        # It multiplies the bits of bfloat16 as if they were integers.
        return multiply(self, widened(left), widened(right), *others)

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        wide = interpreter._convert_float(handle.data, tl.bfloat16, tl.float32, None)
        return interpreter.TensorHandle(wide.view(np.float32), tl.float32)

    interpreter._patch_lang_tensor = patch_more
    interpreter.InterpreterBuilder.create_dot = multiply_wide


def cache_lookups(interpreter: Any) -> None:
    """Do once what Triton 3.6 does for every call, and skip what has no effect."""
    tl = interpreter.tl
    patch = interpreter._patch_lang
    make_semantic = functools.cache(interpreter.TritonSemantic)
    find_type = interpreter._get_np_dtype
    nothing = interpreter._LangPatchScope()

    @functools.cache
    def patch_all() -> Any:
        return patch(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))

    def patch_once(_: Any) -> Any:
        # Every call of a function searches the language for functions to replace. Nothing else in
        # these processes uses it, so once is enough, and nothing is restored.
        patch_all()
        return nothing

    def patch_directly(owner: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        # Two functions around every operation only pass this argument on.
        function = getattr(member, "__wrapped__", member)
        semantic = make_semantic(builder)

        def call(*arguments: Any, _semantic: Any = None, **options: Any) -> Any:
            return function(*arguments, **options, _semantic=semantic)

        scope.set_attr(owner, name, call)

    known_type = functools.cache(find_type)

    def type_of(dtype: Any) -> Any:
        # Every lookup of a type builds a table of all types. Pointer types cannot be cached.
        scalar = dtype.scalar
        return find_type(scalar) if scalar.is_ptr() else known_type(scalar)

    # Integer overflow is computed, but used for debugging only.
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)
    interpreter._patch_lang = patch_once
    interpreter._patch_attr = patch_directly
    interpreter._get_np_dtype = type_of


def cache_types(interpreter: Any) -> None:
    """Cache types and shapes: to build them takes most of the remaining time."""
    tl = interpreter.tl
    make_tuple, untyped = tl.tuple.__init__, tl.core.tuple_type([])

    def make_untyped(self: Any, values: Any, type: Any = None) -> None:
        # Every shape is a tuple; its type is for the compiler only.
        make_tuple(self, values, untyped if type is None else type)

    unwrap, wrapped = tl.core._unwrap_if_constexpr, (list, tuple, tl.tuple)

    def unwrap_soon(value: Any) -> Any:
        # Most values cannot hold a constant.
        kind = value.__class__
        if kind is tl.constexpr:
            return value.value
        return unwrap(value) if kind in wrapped else value

    make_block, known_blocks = tl.block_type.__init__, {}

    def make_known_block(self: Any, element_ty: Any, shape: Any) -> None:
        # There are few block types, but one is built for every value.
        key = (element_ty.name, tuple(map(unwrap_soon, shape)))
        if key not in known_blocks:
            make_block(self, element_ty, shape)
            self.constants = (tl.tuple(map(tl.constexpr, self.shape)), tl.constexpr(self.numel))
            known_blocks[key] = self.__dict__.copy()
        self.__dict__.update(known_blocks[key], element_ty=element_ty)

    change_element, known_changes = tl.block_type.with_element_ty, {}

    def change_known_element(self: Any, scalar: Any) -> Any:
        key = (self.name, scalar.name)
        if key not in known_changes:
            known_changes[key] = change_element(self, scalar)
        return known_changes[key]

    def make_small_tensor(self: Any, handle: Any, type: Any) -> None:
        # The rest is seldom asked for, and follows from the type.
        self.handle, self.type = handle, type

    tl.dtype.constants = (tl.tuple([]), tl.constexpr(1))
    tl.tensor.dtype = property(lambda self: self.type.scalar)
    tl.tensor.shape = property(lambda self: self.type.constants[0])
    tl.tensor.numel = property(lambda self: self.type.constants[1])

    semantic = interpreter.TritonSemantic
    broadcast = semantic.broadcast_impl_value

    def broadcast_unlike(self: Any, left: Any, right: Any) -> Any:
        # Most pairs of blocks have the same shape.
        one, other = left.type, right.type
        if not one.is_block():
            return (spread(left, other), right) if other.is_block() else (left, right)
        if not other.is_block():
            return left, spread(right, one)
        is_alike = one.shape.values == other.shape.values
        return (left, right) if is_alike else broadcast(self, left, right)

    def spread(number: Any, block: Any) -> Any:
        array = np.empty(block.shape.values, interpreter._get_np_dtype(number.type))
        array[...] = number.handle.data
        handle = interpreter.TensorHandle(array, number.type)
        return tl.tensor(handle, block.with_element_ty(number.type))

    tl.tuple.__init__ = make_untyped
    tl.core._unwrap_if_constexpr = unwrap_soon
    tl.block_type.__init__ = make_known_block
    tl.block_type.with_element_ty = change_known_element
    # Types are their own form for the interpreter.
    tl.block_type.to_ir = lambda self, builder: self
    tl.tensor.__init__ = make_small_tensor
    semantic.broadcast_impl_value = broadcast_unlike


# Types whose arrays hold numbers; arrays of others hold their bits.
PLAIN = {"int1", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"}
PLAIN |= {"fp16", "fp32", "fp64"}


def shorten_steps(interpreter: Any) -> None:
    """Take short ways through what every operation goes through."""
    tl, semantic, handle = interpreter.tl, interpreter.TritonSemantic, interpreter.TensorHandle
    to_tensor, cast, check_size = semantic.to_tensor, semantic.cast, handle.__post_init__
    take = tl.tensor.__getitem__
    names = tl.dtype.SINT_TYPES + tl.dtype.UINT_TYPES + tl.dtype.FP_TYPES
    sizes = {name: max(1, tl.dtype(name).primitive_bitwidth // 8) for name in names}
    numbers: dict[Any, Any] = {}

    def make_handle(self: Any, data: Any, dtype: Any) -> None:
        self.data, self.dtype = data, dtype
        # Those of pointers, which have no size here, are 8 bytes.
        if data.itemsize != sizes.get(dtype.name, 8):
            check_size(self)

    def to_known_tensor(self: Any, value: Any, check_type: bool = True) -> Any:
        kind = value.__class__
        if kind is tl.tensor:
            return value
        if kind is not int and kind is not float:
            return to_tensor(self, value, check_type)
        if (kind, value) not in numbers:
            numbers[kind, value] = to_tensor(self, value)
        return numbers[kind, value]

    def cast_soon(self: Any, value: Any, to: Any, rounding: Any = None) -> Any:
        one, other = value.dtype, to.scalar
        if one is other and rounding is None:
            return value
        is_plain = one.name in PLAIN and other.name in PLAIN and other is not tl.int1
        if not is_plain or rounding is not None:
            return cast(self, value, to, rounding)
        data = value.handle.data.astype(interpreter._get_np_dtype(other))
        return tl.tensor(handle(data, other), value.type.with_element_ty(other))

    def is_axis(place: Any) -> bool:
        return place is None or (place.__class__ is slice and place == slice(None))

    def take_soon(self: Any, places: Any, _semantic: Any = None) -> Any:
        is_known = places.__class__ is tuple and self.type.is_block()
        if not is_known or not all(map(is_axis, places)):
            return take(self, places, _semantic=interpreter.interpreter_semantic)
        data, scalar = self.handle.data[places], self.dtype
        return tl.tensor(handle(data, scalar), tl.block_type(scalar, list(data.shape)))

    handle.__init__ = make_handle
    # Hints are for the compiler only.
    handle.set_attr = lambda self, name, values: None
    semantic.to_tensor, semantic.cast = to_known_tensor, cast_soon
    tl.tensor.__getitem__ = take_soon
    # Every argument of a launch has its type made of its name.
    tl.str_to_ty = functools.cache(tl.str_to_ty)


def divide_whole(one: Any, other: Any, order: Any) -> Any:
    """Divide integers, rounded towards zero."""
    divisible = np.subtract(one, np.fmod(one, other, order=order), order=order)
    return np.floor_divide(divisible, other, order=order)


FUNCTIONS: dict[str, Any] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
FUNCTIONS |= {"truediv": np.divide, "floordiv": divide_whole, "mod": np.fmod}
FUNCTIONS |= {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
FUNCTIONS |= {"lshift": np.left_shift, "rshift": np.right_shift}
# These make tensors of numbers before they look at types.
COMPARISONS: dict[str, Any] = {"lt": np.less, "le": np.less_equal, "eq": np.equal}
COMPARISONS |= {"gt": np.greater, "ge": np.greater_equal, "ne": np.not_equal}
COMPARISONS |= {"minimum": np.minimum, "maximum": np.maximum}
FUNCTIONS |= COMPARISONS


def operate_directly(interpreter: Any) -> None:
    """Do elementwise operations by numpy alone, which broadcasts without copies.

    The first one on operands of two types, or of a type and a number, is done both ways: so types
    and shapes are checked as ever. The next ones are done by numpy if it found the same.
    """
    tl, patch, handle = interpreter.tl, interpreter._patch_attr, interpreter.TensorHandle
    semantic, type_of = interpreter.interpreter_semantic, interpreter._get_np_dtype

    def find_way(name: str, left: Any, right: Any, found: Any) -> Any:
        """A function of both arrays, the array of a number, order in memory, and what it gives."""
        is_number = right.__class__ is not tl.tensor
        other = semantic.to_tensor(right) if name in COMPARISONS else right
        # Are pointers allowed, left and right? Are types converted? Is it a division?
        rules = (name in ("add", "sub"), name == "add", True, name.endswith(("div", "mod")))
        pair = semantic.binary_op_type_checking_impl(left, other, *rules)
        # Types of the operands after conversion and before. A number is converted here.
        finals = [part.dtype for part in pair]
        kinds = [left.dtype, finals[1] if is_number else right.dtype]
        function = FUNCTIONS[name]
        if name == "add" and kinds[0].is_ptr() and finals[1].name in PLAIN:
            size = max(1, kinds[0].element_ty.primitive_bitwidth // 8)
            function = functools.partial(move, size)
        elif not PLAIN.issuperset(kind.name for kind in kinds + finals):
            return ()
        elif kinds != finals:
            function = functools.partial(convert, function, *map(type_of, finals))
        constant = pair[1].handle.data.ravel()[:1] if is_number else None
        # Where one was spread over a block, that was in C's order, and so was what came out.
        is_spread = left.type.is_block() != (not is_number and right.type.is_block())
        way = (function, constant, "C" if is_spread else "K", found.type, found.dtype)
        data, same = go(way, left, right).handle.data, found.handle.data
        same = same.astype(type_of(found.dtype))
        is_same = data.dtype == same.dtype and data.shape == same.shape
        return way if is_same and data.tobytes() == same.tobytes() else ()

    def go(way: Any, left: Any, right: Any) -> Any:
        function, constant, order, kind, dtype = way
        other = right.handle.data if constant is None else constant
        return tl.tensor(handle(function(left.handle.data, other, order=order), dtype), kind)

    def move(size: int, places: Any, steps: Any, order: Any) -> Any:
        return np.add(places, size * steps.astype(np.uint64), order=order)

    def convert(function: Any, one: Any, two: Any, left: Any, right: Any, order: Any) -> Any:
        return function(left.astype(one), right.astype(two), order=order)

    def directly(name: str, operation: Any) -> Any:
        ways: dict[Any, Any] = {}

        def operate(left: Any, right: Any, **options: Any) -> Any:
            if left.__class__ is not tl.tensor:
                return operation(left, right, **options)
            if right.__class__ is tl.tensor:
                key: Any = (left.type.name, right.type.name)
            else:
                right = right.value if right.__class__ is tl.constexpr else right
                key = (left.type.name, right.__class__, right)
            way = ways.get(key)
            if way:
                return go(way, left, right)
            found = operation(left, right, **options)
            if way is None:
                ways[key] = find_way(name, left, right, found)
            return found

        return operate

    operators = {f"__{name}__": name for name in FUNCTIONS}
    operators |= {name: name for name in ("add", "sub", "mul", "minimum", "maximum")}

    def patch_more(owner: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        patch(owner, name, member, builder, scope)
        if name in operators:
            setattr(owner, name, directly(operators[name], getattr(owner, name)))

    interpreter._patch_attr = patch_more
