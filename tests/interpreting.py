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
    cache_constants(interpreter)
    shorten_steps(interpreter)
    sum_by_arrays(interpreter)


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
            self.key = key
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


def cache_constants(interpreter: Any) -> None:
    """Check operands of one type for their shapes only, and build the block of a constant once."""
    tl, semantic = interpreter.tl, interpreter.TritonSemantic
    check, known = semantic.binary_op_type_checking_impl, {}

    def check_soon(self: Any, left: Any, right: Any, *rules: Any, **options: Any) -> Any:
        comes_first = left.__class__ is tl.tensor
        tensor, other = (left, right) if comes_first else (right, left)
        if tensor.__class__ is not tl.tensor or len(rules) > 2 or options:
            return check(self, left, right, *rules, **options)
        if other.__class__ is tl.tensor:
            if left.dtype is right.dtype and not left.dtype.is_ptr():
                return self.broadcast_impl_value(left, right)
            return check(self, left, right, *rules)
        kind = tensor.type
        key = (kind.key if kind.is_block() else kind.name, other.__class__, other, *rules)
        if (key, comes_first) not in known:
            pair = check(self, left, right, *rules)
            if pair[not comes_first] is not tensor:
                return pair
            known[key, comes_first] = pair[comes_first]
        constant = known[key, comes_first]
        return (tensor, constant) if comes_first else (constant, tensor)

    semantic.binary_op_type_checking_impl = check_soon


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
