# SPDX-License-Identifier: Apache-2.0
"""Triton kernels for convolutions and max-pooling on a GPU; absent where Triton is.

Images lie channels-last. A convolution reads the patches of an image where they are, without laying
them out; it finds an image with the zeros around it, so that no entry of a patch asks whether it is
inside. ``convolve`` makes its outputs, ``convolve_gradient`` the gradient of its inputs, and
``form_gradients`` every example's own gradient of its weights, with its squared norm. A stack of
models is one launch.

Products of all three may be TF32 (``torch.backends.cudnn.allow_tf32``, torch's own setting for
convolutions, true unless somebody changes it). Clipping stays exact: a formed gradient is a
function of one record and the weights however it is rounded, its norm is that of the very numbers
that were formed, in 32 bits, and these are what is scaled and added up, in 32 bits.

``pool`` and ``pool_gradient`` do max-pooling, with a ReLU after it or a tanh before it if asked.
Every number of every result here is written once by one program, so sums always add up in the same
order, and none depends on other examples.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dpcohort.engine._counter_noise import AVAILABLE as AVAILABLE

#: Entries of a window at most: the place of its largest is kept in one byte, 255 for none yet.
LARGEST_WINDOW = 254

_BLOCK = 1024
Pair = tuple[int, int]
#: Of a convolution: height and width of its kernel, from patch to patch, of the zeros on each side,
#: and from entry to entry of a patch.
Geometry = tuple[Pair, Pair, Pair, Pair]


def padded(
    image: Tensor, before: Pair, after: Pair, *, tanh: bool = False, bias: Tensor | None = None
) -> Tensor:
    """Images [rows, height, width, channels] with zeros around them, contiguous.

    Args:
        image: what they are.
        before: zeros above and to the left.
        after: zeros below and to the right.
        tanh: put the tanh of the images there.
        bias: then [channels], contiguous, to be added to the images first.
    """
    image = image.contiguous()
    if not any((*before, *after)) and not tanh:
        return image
    rows, height, width, channels = image.shape
    down, across = (image.shape[1 + i] + before[i] + after[i] for i in (0, 1))
    out = image.new_empty(rows, down, across, channels)
    pixels, block, wide = _pixels(out)
    _pad[(-(-pixels // block),)](
        out, image, image if bias is None else bias, pixels,
        HEIGHT=height, WIDTH=width, CHANNELS=channels, DOWN=down, ACROSS=across,
        PH=before[0], PW=before[1], TANH=tanh, HAS_BIAS=bias is not None, BLOCK=block, WIDE=wide,
    )  # fmt: skip
    return out


def times_tanh_slope(gradient: Tensor, activated: Tensor, before: Pair) -> None:
    """Multiply a gradient by 1 - y^2 for the tanh y that ``padded`` made, in place.

    Args:
        gradient: [rows, height, width, channels], contiguous.
        activated: y with the zeros around it.
        before: zeros above and to the left of it.
    """
    pixels, block, wide = _pixels(gradient)
    _times_tanh_slope[(-(-pixels // block),)](
        gradient, activated, pixels, HEIGHT=gradient.shape[1], WIDTH=gradient.shape[2],
        CHANNELS=gradient.shape[3], DOWN=activated.shape[1], ACROSS=activated.shape[2],
        PH=before[0], PW=before[1], BLOCK=block, WIDE=wide,
    )  # fmt: skip


def convolve(
    out: Tensor, image: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry
) -> None:
    """Write the outputs of a convolution, each group of images with its own weights.

    Args:
        out: [rows, height, width, outputs], contiguous.
        image: [rows, height, width, channels] with its zeros around it, contiguous, 32-bit; as many
            rows for each group.
        weight: [groups, outputs, channels, height, width], each group's contiguous.
        bias: [groups, outputs], of the same memory.
        geometry: of the convolution.
    """
    groups, outputs = weight.shape[:2]
    per_group = out.numel() // (outputs * groups)
    wide = _tile(outputs, 128)
    _convolve[(-(-per_group // _PIXELS), groups, -(-outputs // wide))](
        out, image, weight, weight if bias is None else bias, per_group, weight.stride(0),
        **_shape(image, out, geometry), HAS_BIAS=bias is not None,
        BLOCK=_PIXELS, WIDE=wide, DEEP=64 if outputs <= 16 else 32, PRECISION=_precision(),
        num_warps=8,
    )  # fmt: skip


def convolve_gradient(out: Tensor, gradient: Tensor, weight: Tensor, geometry: Geometry) -> None:
    """Write the gradient of a convolution's inputs from that of its outputs.

    Args:
        out: [rows, height, width, channels] of the inputs, contiguous.
        gradient: [rows, height, width, outputs].
        weight: as in ``convolve``.
        geometry: of the convolution, without dilation.
    """
    groups, outputs, channels = weight.shape[:3]
    kernel, stride, padding, _ = geometry
    # Pixels come in blocks of a stride: the same positions have looked at all pixels of a block.
    blocks = [-(-(out.shape[1 + i] + padding[i]) // stride[i]) for i in (0, 1)]
    taps = [-(-kernel[i] // stride[i]) for i in (0, 1)]
    # With zeros around it, every block finds as many positions.
    after = [max(0, blocks[i] - gradient.shape[1 + i]) for i in (0, 1)]
    around = padded(gradient, (taps[0] - 1, taps[1] - 1), (after[0], after[1]))
    rows = out.shape[0] // groups
    per_group, columns = rows * blocks[0] * blocks[1], stride[0] * stride[1] * channels
    wide = _tile(columns, 128)
    _convolve_gradient[(-(-per_group // _PIXELS), groups, -(-columns // wide))](
        out, around, weight, per_group, rows, weight.stride(0),
        HEIGHT=out.shape[1], WIDTH=out.shape[2], CHANNELS=channels, OUTPUTS=outputs,
        DOWN=around.shape[1], ACROSS=around.shape[2], PH=padding[0], PW=padding[1],
        KH=kernel[0], KW=kernel[1], SH=stride[0], SW=stride[1], TH=taps[0], TW=taps[1],
        BLOCKS_DOWN=blocks[0], BLOCKS_ACROSS=blocks[1],
        BLOCK=_PIXELS, WIDE=wide, DEEP=32, RUN=_run(outputs), PRECISION=_precision(), num_warps=8,
    )  # fmt: skip


def form_gradients(
    formed: Tensor, bias: Tensor | None, image: Tensor, gradient: Tensor, geometry: Geometry
) -> Tensor:
    """Write each example's gradient of a convolution's weights; its squared norm, [rows].

    Args:
        formed: [rows, outputs, height x width x channels of the kernel], contiguous.
        bias: [rows, outputs] for the gradient of the bias, which then counts in the norm.
        image: as in ``convolve``.
        gradient: [rows, height, width, outputs] of the outputs, contiguous.
        geometry: of the convolution.
    """
    rows, outputs, fan_in = formed.shape
    high = _tile(outputs, 128)
    wide = _tile(fan_in, 64 if high == 128 else 128)
    if high <= 32 and gradient[0, :, :, 0].numel() <= 64:
        wide = _tile(fan_in, 256)
    tiles = (-(-fan_in // wide), -(-outputs // high))
    norms = formed.new_empty(rows, tiles[1] * tiles[0])
    _form_gradients[(rows, *tiles)](
        formed, formed if bias is None else bias, norms, image, gradient,
        **_shape(image, gradient, geometry), HAS_BIAS=bias is not None,
        HIGH=high, WIDE=wide, DEEP=16 if high == 16 else 32, PRECISION=_precision(), num_warps=2,
    )  # fmt: skip
    return norms.sum(1)


_PIXELS = 256  # of one program


def _tile(size: int, at_most: int) -> int:
    """A power of two that holds ``size`` if it is not too many; matrix units take 16 at least."""
    return min(at_most, max(16, 1 << (size - 1).bit_length()))


def _run(*sizes: int) -> int:
    """How many numbers lie side by side wherever one of them begins: 1, 2 or 4, read at once."""
    return math.gcd(4, *sizes)


def _precision() -> str:
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"


def _shape(image: Tensor, outputs: Tensor, geometry: Geometry) -> dict[str, int]:
    """Sizes of a convolution of padded images, as its kernels take them."""
    kernel, stride, _, dilation = geometry
    height, width, channels = image.shape[1:]
    return {
        "HEIGHT": height, "WIDTH": width, "CHANNELS": channels,
        "DOWN": outputs.shape[1], "ACROSS": outputs.shape[2], "OUTPUTS": outputs.shape[3],
        "KH": kernel[0], "KW": kernel[1], "SH": stride[0], "SW": stride[1],
        "DH": dilation[0], "DW": dilation[1],
        "RUN": _run(channels * (kernel[1] if dilation[1] == 1 else 1), channels * stride[1],
                    width * channels),
    }  # fmt: skip


def pool(
    out: Tensor, places: Tensor, image: Tensor, *, kernel: Pair, stride: Pair, padding: Pair,
    relu: bool = False, tanh: bool = False, bias: Tensor | None = None,
) -> None:  # fmt: skip
    """Write the largest entry of each window and its place in the window.

    Args:
        out: [rows, height, width, channels] of the output, contiguous.
        places: the same in bytes.
        image: [rows, height, width, channels] of the input, contiguous.
        kernel: height and width of a window.
        stride: from window to window.
        padding: on each side; never the largest.
        relu: write zero for what is not above it, as nobody's place.
        tanh: pool the tanh of the input.
        bias: [channels], contiguous, to be added to the input first.
    """
    pixels, block, wide = _pixels(out)
    _pool[(-(-pixels // block),)](
        out, places, image, image if bias is None else bias, pixels,
        HEIGHT=image.shape[1], WIDTH=image.shape[2], CHANNELS=image.shape[3],
        DOWN=out.shape[1], ACROSS=out.shape[2], KH=kernel[0], KW=kernel[1],
        SH=stride[0], SW=stride[1], PH=padding[0], PW=padding[1], RELU=relu, TANH=tanh,
        HAS_BIAS=bias is not None, BLOCK=block, WIDE=wide,
    )  # fmt: skip


def pool_gradient(
    out: Tensor, places: Tensor, gradient: Tensor, *, kernel: Pair, stride: Pair, padding: Pair,
    pooled: Tensor | None = None,
) -> None:  # fmt: skip
    """Write the gradient of the input from that of the output, both as in ``pool``.

    Args:
        out: where to write.
        places: of the largest entries.
        gradient: of the output, contiguous.
        kernel: as in ``pool``.
        stride: as in ``pool``.
        padding: as in ``pool``.
        pooled: the output, if it is of the input's tanh.
    """
    pixels, block, wide = _pixels(out)
    _pool_gradient[(-(-pixels // block),)](
        out, places, gradient, gradient if pooled is None else pooled, pixels,
        HEIGHT=out.shape[1], WIDTH=out.shape[2], CHANNELS=out.shape[3],
        DOWN=gradient.shape[1], ACROSS=gradient.shape[2], KH=kernel[0], KW=kernel[1],
        SH=stride[0], SW=stride[1], PH=padding[0], PW=padding[1],
        TANH=pooled is not None, BLOCK=block, WIDE=wide,
    )  # fmt: skip


def _pixels(out: Tensor) -> tuple[int, int, int]:
    """Pixels of images, how many of them a program does, and a power of two for their channels."""
    channels = out.shape[3]
    wide = 1 << (channels - 1).bit_length()
    return out.numel() // channels, max(1, _BLOCK // wide), wide


if AVAILABLE:
    import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from triton.language.extra import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
        libdevice,
    )

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _pad(  # type: ignore[no-untyped-def]
        out, image, bias, size,
        HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,  # noqa: N803
        DOWN: tl.constexpr, ACROSS: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,  # noqa: N803
        TANH: tl.constexpr, HAS_BIAS: tl.constexpr,  # noqa: N803
        BLOCK: tl.constexpr, WIDE: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        pixel = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        row = pixel // (DOWN * ACROSS)
        rest = (pixel % (DOWN * ACROSS)).to(tl.int32)
        y = rest // ACROSS - PH
        x = rest % ACROSS - PW
        inside = (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH) & (pixel < size)
        channel = tl.arange(0, WIDE)[None, :]
        source = ((row * HEIGHT + y) * WIDTH + x) * CHANNELS
        real = inside[:, None] & (channel < CHANNELS)
        value = tl.load(image + source[:, None] + channel, mask=real, other=0.0)
        if HAS_BIAS:
            value += tl.load(bias + channel, mask=channel < CHANNELS, other=0.0)
        if TANH:
            value = tl.where(real, libdevice.tanh(value), 0.0)
        tl.store(
            out + (pixel * CHANNELS)[:, None] + channel, value,
            mask=(pixel < size)[:, None] & (channel < CHANNELS),
        )  # fmt: skip

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _times_tanh_slope(  # type: ignore[no-untyped-def]
        gradient, activated, size,
        HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,  # noqa: N803
        DOWN: tl.constexpr, ACROSS: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,  # noqa: N803
        BLOCK: tl.constexpr, WIDE: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        pixel = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        row = pixel // (HEIGHT * WIDTH)
        rest = (pixel % (HEIGHT * WIDTH)).to(tl.int32)
        source = (row * DOWN + rest // WIDTH + PH) * ACROSS + rest % WIDTH + PW
        channel = tl.arange(0, WIDE)[None, :]
        real = (pixel < size)[:, None] & (channel < CHANNELS)
        y = tl.load(activated + (source * CHANNELS)[:, None] + channel, mask=real, other=0.0)
        where = (pixel * CHANNELS)[:, None] + channel
        slope = tl.load(gradient + where, mask=real, other=0.0)
        tl.store(gradient + where, slope * (1.0 - y * y), mask=real)

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _entries(  # type: ignore[no-untyped-def]
        entry, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,  # noqa: N803
        KW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, RUN: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        # Where the entries of a patch lie, from its first.
        down = entry // (KW * CHANNELS)
        across = (entry // CHANNELS) % KW
        place = (down * DH * WIDTH + across * DW) * CHANNELS + entry % CHANNELS
        return tl.max_contiguous(tl.multiple_of(place, RUN), RUN)

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _convolve(  # type: ignore[no-untyped-def]
        out, image, weight, bias, per_group, group_stride,
        HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,  # noqa: N803
        DOWN: tl.constexpr, ACROSS: tl.constexpr, OUTPUTS: tl.constexpr,  # noqa: N803
        KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,  # noqa: N803
        DH: tl.constexpr, DW: tl.constexpr, RUN: tl.constexpr,  # noqa: N803
        HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,  # noqa: N803
        DEEP: tl.constexpr, PRECISION: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        FAN_IN: tl.constexpr = KH * KW * CHANNELS  # noqa: N806
        group = tl.program_id(1).to(tl.int64)
        within = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        # What is too many reads the last again, and is not written.
        pixel = group * per_group + tl.minimum(within, per_group - 1)
        row = pixel // (DOWN * ACROSS)
        position = (pixel % (DOWN * ACROSS)).to(tl.int32)
        corner = ((position // ACROSS) * SH * WIDTH + (position % ACROSS) * SW) * CHANNELS
        first = tl.multiple_of(row * (HEIGHT * WIDTH * CHANNELS) + corner, RUN)
        output = tl.program_id(2) * WIDE + tl.arange(0, WIDE)
        own = weight + group * group_stride
        total = tl.zeros([BLOCK, WIDE], tl.float32)
        for start in range(0, FAN_IN, DEEP):
            entry = start + tl.arange(0, DEEP)
            there = entry < FAN_IN
            place = _entries(tl.where(there, entry, 0), WIDTH, CHANNELS, KW, DH, DW, RUN)
            patch = tl.load(image + (first[:, None] + place[None, :]))
            channel = entry % CHANNELS
            factor = tl.load(
                own + output[None, :] * FAN_IN + (channel * (KH * KW) + entry // CHANNELS)[:, None],
                mask=there[:, None] & (output < OUTPUTS)[None, :], other=0.0,
            )  # fmt: skip
            total = tl.dot(patch, factor, total, input_precision=PRECISION)
        if HAS_BIAS:
            shift = tl.load(bias + group * group_stride + output, mask=output < OUTPUTS, other=0.0)
            total += shift[None, :]
        tl.store(
            out + (group * per_group + within)[:, None] * OUTPUTS + output[None, :], total,
            mask=(within < per_group)[:, None] & (output < OUTPUTS)[None, :],
        )  # fmt: skip

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _convolve_gradient(  # type: ignore[no-untyped-def]
        out, gradient, weight, per_group, rows, group_stride,
        HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,  # noqa: N803
        OUTPUTS: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,  # noqa: N803
        PH: tl.constexpr, PW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,  # noqa: N803
        SH: tl.constexpr, SW: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr,  # noqa: N803
        BLOCKS_DOWN: tl.constexpr, BLOCKS_ACROSS: tl.constexpr,  # noqa: N803
        BLOCK: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr,  # noqa: N803
        RUN: tl.constexpr, PRECISION: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        group = tl.program_id(1).to(tl.int64)
        within = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        known = tl.minimum(within, per_group - 1)
        row = group * rows + known // (BLOCKS_DOWN * BLOCKS_ACROSS)
        down = (known // BLOCKS_ACROSS) % BLOCKS_DOWN
        across = known % BLOCKS_ACROSS
        first = (down + (TH - 1)) * ACROSS + across + (TW - 1)
        first = tl.multiple_of((row * (DOWN * ACROSS) + first) * OUTPUTS, RUN)
        # A column is a pixel of the block and a channel of it.
        column = tl.program_id(2) * WIDE + tl.arange(0, WIDE)
        channel = column % CHANNELS
        own_down = column // (CHANNELS * SW)
        own_across = (column // CHANNELS) % SW
        own = weight + group * group_stride
        total = tl.zeros([BLOCK, WIDE], tl.float32)
        for start in range(0, TH * TW * OUTPUTS, DEEP):
            entry = start + tl.arange(0, DEEP)
            output = entry % OUTPUTS
            tap_down = entry // (OUTPUTS * TW)
            tap_across = (entry // OUTPUTS) % TW
            there = entry < TH * TW * OUTPUTS
            place = tl.where(there, output - (tap_down * ACROSS + tap_across) * OUTPUTS, 0)
            place = tl.max_contiguous(tl.multiple_of(place, RUN), RUN)
            slope = tl.load(gradient + (first[:, None] + place[None, :]))
            at_down = own_down[None, :] + (SH * tap_down)[:, None]
            at_across = own_across[None, :] + (SW * tap_across)[:, None]
            used = (at_down < KH) & (at_across < KW) & there[:, None]
            factor = tl.load(
                own + (output * (CHANNELS * KH * KW))[:, None] + (channel * (KH * KW))[None, :]
                + at_down * KW + at_across,
                mask=used & (column < SH * SW * CHANNELS)[None, :], other=0.0,
            )  # fmt: skip
            total = tl.dot(slope, factor, total, input_precision=PRECISION)
        y = (down * SH - PH)[:, None] + own_down[None, :]
        x = (across * SW - PW)[:, None] + own_across[None, :]
        inside = (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
        pixel = (row * (HEIGHT * WIDTH))[:, None] + y * WIDTH + x
        tl.store(
            out + pixel * CHANNELS + channel[None, :], total,
            mask=inside & (within < per_group)[:, None] & (column < SH * SW * CHANNELS)[None, :],
        )  # fmt: skip

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _form_gradients(  # type: ignore[no-untyped-def]
        formed, bias, norms, image, gradient,
        HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,  # noqa: N803
        DOWN: tl.constexpr, ACROSS: tl.constexpr, OUTPUTS: tl.constexpr,  # noqa: N803
        KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,  # noqa: N803
        DH: tl.constexpr, DW: tl.constexpr, RUN: tl.constexpr,  # noqa: N803
        HAS_BIAS: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,  # noqa: N803
        DEEP: tl.constexpr, PRECISION: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        FAN_IN: tl.constexpr = KH * KW * CHANNELS  # noqa: N806
        POSITIONS: tl.constexpr = DOWN * ACROSS  # noqa: N806
        row = tl.program_id(0).to(tl.int64)
        entry = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
        output = tl.program_id(2) * HIGH + tl.arange(0, HIGH)
        real = entry < FAN_IN
        place = _entries(tl.where(real, entry, 0), WIDTH, CHANNELS, KW, DH, DW, RUN)
        source = image + row * (HEIGHT * WIDTH * CHANNELS)
        slopes = gradient + row * (POSITIONS * OUTPUTS)
        total = tl.zeros([HIGH, WIDE], tl.float32)
        shift = tl.zeros([HIGH], tl.float32)
        for start in range(0, POSITIONS, DEEP):
            position = start + tl.arange(0, DEEP)
            known = tl.minimum(position, POSITIONS - 1)
            corner = ((known // ACROSS) * SH * WIDTH + (known % ACROSS) * SW) * CHANNELS
            corner = tl.multiple_of(corner, RUN)
            patch = tl.load(source + (corner[:, None] + place[None, :]))
            slope = tl.load(
                slopes + position[:, None] * OUTPUTS + output[None, :],
                mask=(position < POSITIONS)[:, None] & (output < OUTPUTS)[None, :], other=0.0,
            )  # fmt: skip
            total = tl.dot(tl.trans(slope), patch, total, input_precision=PRECISION)
            if HAS_BIAS:
                shift += tl.sum(slope, axis=0)
        tl.store(
            formed + row * (OUTPUTS * FAN_IN) + output[:, None] * FAN_IN + entry[None, :], total,
            mask=(output < OUTPUTS)[:, None] & real[None, :],
        )  # fmt: skip
        square = tl.sum(tl.sum(tl.where(real[None, :], total * total, 0.0), axis=1), axis=0)
        if HAS_BIAS:  # noqa: SIM102 (the first is decided when it is compiled)
            if tl.program_id(1) == 0:
                tl.store(bias + row * OUTPUTS + output, shift, mask=output < OUTPUTS)
                square += tl.sum(shift * shift, axis=0)
        tile = tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)
        tl.store(norms + row * (tl.num_programs(1) * tl.num_programs(2)) + tile, square)

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _pool(  # type: ignore[no-untyped-def]
        out, places, image, bias, size,
        HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,  # noqa: N803
        DOWN: tl.constexpr, ACROSS: tl.constexpr,  # noqa: N803
        KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,  # noqa: N803
        PH: tl.constexpr, PW: tl.constexpr, RELU: tl.constexpr, TANH: tl.constexpr,  # noqa: N803
        HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        pixel = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        row = pixel // (DOWN * ACROSS)
        rest = (pixel % (DOWN * ACROSS)).to(tl.int32)
        y = (rest // ACROSS) * SH - PH
        x = (rest % ACROSS) * SW - PW
        channel = tl.arange(0, WIDE)[None, :]
        real = (pixel < size)[:, None] & (channel < CHANNELS)
        first = row * (HEIGHT * WIDTH)
        best = tl.full([BLOCK, WIDE], float("-inf"), out.dtype.element_ty)
        place = tl.full([BLOCK, WIDE], 255, tl.int32)
        if HAS_BIAS:
            shift = tl.load(bias + channel, mask=channel < CHANNELS, other=0.0)
        for i in tl.static_range(KH):
            for j in tl.static_range(KW):
                inside = (y + i >= 0) & (y + i < HEIGHT) & (x + j >= 0) & (x + j < WIDTH)
                inside = inside[:, None] & real
                where = (first + (y + i) * WIDTH + x + j) * CHANNELS
                value = tl.load(image + where[:, None] + channel, mask=inside, other=0.0)
                if HAS_BIAS:
                    value += shift
                if TANH:
                    value = libdevice.tanh(value)
                # As torch: the first of equals, and NaN above all.
                taken = inside & ((value > best) | (value != value) | (place == 255))
                best = tl.where(taken, value, best)
                place = tl.where(taken, i * KW + j, place)
        if RELU:
            below = best <= 0.0
            best = tl.where(below, 0.0, best)
            place = tl.where(below, 255, place)
        target = (pixel * CHANNELS)[:, None] + channel
        tl.store(out + target, best, mask=real)
        tl.store(places + target, place.to(tl.uint8), mask=real)

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _pool_gradient(  # type: ignore[no-untyped-def]
        out, places, gradient, pooled, size,
        HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,  # noqa: N803
        DOWN: tl.constexpr, ACROSS: tl.constexpr,  # noqa: N803
        KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,  # noqa: N803
        PH: tl.constexpr, PW: tl.constexpr, TANH: tl.constexpr,  # noqa: N803
        BLOCK: tl.constexpr, WIDE: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        pixel = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        row = pixel // (HEIGHT * WIDTH)
        rest = (pixel % (HEIGHT * WIDTH)).to(tl.int32)
        y = rest // WIDTH + PH
        x = rest % WIDTH + PW
        channel = tl.arange(0, WIDE)[None, :]
        real = (pixel < size)[:, None] & (channel < CHANNELS)
        first = row * (DOWN * ACROSS)
        total = tl.zeros([BLOCK, WIDE], out.dtype.element_ty)
        value = tl.zeros([BLOCK, WIDE], out.dtype.element_ty)
        # The windows that hold this entry: the last to begin before it, and those before that one.
        for i in tl.static_range((KH + SH - 1) // SH):
            for j in tl.static_range((KW + SW - 1) // SW):
                down = y // SH - i
                across = x // SW - j
                below = y - down * SH
                beside = x - across * SW
                there = (down >= 0) & (down < DOWN) & (below < KH)
                there = there & (across >= 0) & (across < ACROSS) & (beside < KW)
                where = ((first + down * ACROSS + across) * CHANNELS)[:, None] + channel
                chosen = tl.load(places + where, mask=there[:, None] & real, other=255)
                mine = chosen.to(tl.int32) == (below * KW + beside)[:, None]
                mine = mine & there[:, None] & real
                total += tl.load(gradient + where, mask=mine, other=0.0)
                if TANH:  # the same in every window that it won
                    value = tl.where(mine, tl.load(pooled + where, mask=mine, other=0.0), value)
        if TANH:
            total *= 1.0 - value * value
        tl.store(out + (pixel * CHANNELS)[:, None] + channel, total, mask=real)
