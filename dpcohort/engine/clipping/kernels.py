# SPDX-License-Identifier: Apache-2.0
"""Triton kernels for convolutions and max-pooling on a GPU; absent where Triton is.

``write_patches`` lays out the patches of images, padding included, at the speed of memory, of which
torch's own strided copy reaches a third. ``pool`` and ``pool_gradient`` do max-pooling of
channels-last images: each entry of the result, forward and backward, is written once by one thread,
so the sums always add up in the same order.
"""

from __future__ import annotations

from torch import Tensor

from dpcohort.engine.counter_noise import AVAILABLE as AVAILABLE

#: Entries of a window at most: the place of its largest is kept in one byte, 255 for none yet.
LARGEST_WINDOW = 254

_BLOCK = 1024
Pair = tuple[int, int]
#: Of a convolution: height and width of its kernel, from patch to patch, of the zeros on each side,
#: and from entry to entry of a patch.
Geometry = tuple[Pair, Pair, Pair, Pair]


def write_patches(
    out: Tensor, image: Tensor, geometry: Geometry, *, output: Pair, by_line: bool
) -> None:
    """Write the patches of [rows, height, width, channels] images, contiguous.

    Args:
        out: [rows, positions, height x width x channels], or, by line, [rows, channels x height x
            width (+ 1), positions]; what is left of it, a last line, becomes ones. Contiguous.
        image: the images.
        geometry: of the convolution.
        output: patches down and across.
        by_line: which of the two layouts.
    """
    rows, height, width, channels = image.shape
    kernel, stride, padding, dilation = geometry
    sizes = {
        "HEIGHT": height, "WIDTH": width, "CHANNELS": channels, "ACROSS": output[1],
        "KH": kernel[0], "KW": kernel[1], "SH": stride[0], "SW": stride[1],
        "PH": padding[0], "PW": padding[1], "DH": dilation[0], "DW": dilation[1],
    }  # fmt: skip
    if not by_line and 4 <= channels <= _BLOCK and channels & (channels - 1) == 0:
        lines = _BLOCK // channels
        size = out[0].numel() // channels
        blocks = -(-size // lines)
        _whole_channels[(rows * blocks,)](out, image, size, blocks, LINES=lines, **sizes)
        return
    size = out[0].numel()
    blocks = -(-size // _BLOCK)
    _each_entry[(rows * blocks,)](
        out, image, size, blocks,
        POSITIONS=output[0] * output[1], BY_LINE=by_line, BLOCK=_BLOCK, **sizes,
    )  # fmt: skip


def pool(
    out: Tensor, places: Tensor, image: Tensor, *, kernel: Pair, stride: Pair, padding: Pair
) -> None:
    """Write the largest entry of each window and its place in the window.

    Args:
        out: [rows, height, width, channels] of the output, contiguous.
        places: the same in bytes.
        image: [rows, height, width, channels] of the input, contiguous.
        kernel: height and width of a window.
        stride: from window to window.
        padding: on each side; never the largest.
    """
    _pool[(-(-out.numel() // _BLOCK),)](
        out, places, image, out.numel(),
        HEIGHT=image.shape[1], WIDTH=image.shape[2], CHANNELS=image.shape[3],
        DOWN=out.shape[1], ACROSS=out.shape[2], KH=kernel[0], KW=kernel[1],
        SH=stride[0], SW=stride[1], PH=padding[0], PW=padding[1], BLOCK=_BLOCK,
    )  # fmt: skip


def pool_gradient(
    out: Tensor, places: Tensor, gradient: Tensor, *, kernel: Pair, stride: Pair, padding: Pair
) -> None:
    """Write the gradient of the input from that of the output, both as in ``pool``."""
    _pool_gradient[(-(-out.numel() // _BLOCK),)](
        out, places, gradient, out.numel(),
        HEIGHT=out.shape[1], WIDTH=out.shape[2], CHANNELS=out.shape[3],
        DOWN=gradient.shape[1], ACROSS=gradient.shape[2], KH=kernel[0], KW=kernel[1],
        SH=stride[0], SW=stride[1], PH=padding[0], PW=padding[1], BLOCK=_BLOCK,
    )  # fmt: skip


if AVAILABLE:
    import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _whole_channels(  # type: ignore[no-untyped-def]
        out, image, size, blocks,
        HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,  # noqa: N803
        ACROSS: tl.constexpr,  # noqa: N803
        KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,  # noqa: N803
        PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,  # noqa: N803
        LINES: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        # Patches in which all channels of a pixel lie side by side are copied pixel by pixel.
        row = (tl.program_id(0) // blocks).to(tl.int64)
        line = (tl.program_id(0) % blocks) * LINES + tl.arange(0, LINES)
        position = line // (KH * KW)
        y = (position // ACROSS) * SH - PH + ((line // KW) % KH) * DH
        x = (position % ACROSS) * SW - PW + (line % KW) * DW
        inside = (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH) & (line < size)
        channel = tl.arange(0, CHANNELS)[None, :]
        source = image + row * (HEIGHT * WIDTH * CHANNELS)
        value = tl.load(
            source + ((y * WIDTH + x) * CHANNELS)[:, None] + channel,
            mask=inside[:, None],
            other=0.0,
        )
        target = out + row * size * CHANNELS
        tl.store(target + (line * CHANNELS)[:, None] + channel, value, mask=(line < size)[:, None])

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _each_entry(  # type: ignore[no-untyped-def]
        out, image, size, blocks,
        HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,  # noqa: N803
        ACROSS: tl.constexpr, POSITIONS: tl.constexpr,  # noqa: N803
        KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,  # noqa: N803
        PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,  # noqa: N803
        BY_LINE: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        row = (tl.program_id(0) // blocks).to(tl.int64)
        entry = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
        if BY_LINE:
            position = entry % POSITIONS
            line = entry // POSITIONS
            across = line % KW
            down = (line // KW) % KH
            channel = line // (KW * KH)
        else:
            place = entry % (KH * KW * CHANNELS)
            position = entry // (KH * KW * CHANNELS)
            channel = place % CHANNELS
            across = (place // CHANNELS) % KW
            down = place // (CHANNELS * KW)
        y = (position // ACROSS) * SH - PH + down * DH
        x = (position % ACROSS) * SW - PW + across * DW
        inside = (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
        inside = inside & (entry < size) & (channel < CHANNELS)
        source = row * (HEIGHT * WIDTH * CHANNELS) + (y * WIDTH + x) * CHANNELS + channel
        value = tl.load(image + source, mask=inside, other=0.0)
        if BY_LINE:
            value = tl.where(channel >= CHANNELS, 1.0, value)
        tl.store(out + row * size + entry, value, mask=entry < size)

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _pool(  # type: ignore[no-untyped-def]
        out, places, image, size,
        HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,  # noqa: N803
        DOWN: tl.constexpr, ACROSS: tl.constexpr,  # noqa: N803
        KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,  # noqa: N803
        PH: tl.constexpr, PW: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        entry = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        row = entry // (DOWN * ACROSS * CHANNELS)
        rest = (entry % (DOWN * ACROSS * CHANNELS)).to(tl.int32)
        channel = rest % CHANNELS
        y = (rest // (CHANNELS * ACROSS)) * SH - PH
        x = ((rest // CHANNELS) % ACROSS) * SW - PW
        start = image + row * (HEIGHT * WIDTH * CHANNELS) + channel
        best = tl.full([BLOCK], float("-inf"), out.dtype.element_ty)
        place = tl.full([BLOCK], 255, tl.int32)
        for i in tl.static_range(KH):
            for j in tl.static_range(KW):
                inside = (y + i >= 0) & (y + i < HEIGHT) & (x + j >= 0) & (x + j < WIDTH)
                inside = inside & (entry < size)
                value = tl.load(
                    start + ((y + i) * WIDTH + x + j) * CHANNELS, mask=inside, other=0.0
                )
                # As torch: the first of equals, and NaN above all.
                taken = inside & ((value > best) | (value != value) | (place == 255))
                best = tl.where(taken, value, best)
                place = tl.where(taken, i * KW + j, place)
        tl.store(out + entry, best, mask=entry < size)
        tl.store(places + entry, place.to(tl.uint8), mask=entry < size)

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _pool_gradient(  # type: ignore[no-untyped-def]
        out, places, gradient, size,
        HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,  # noqa: N803
        DOWN: tl.constexpr, ACROSS: tl.constexpr,  # noqa: N803
        KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,  # noqa: N803
        PH: tl.constexpr, PW: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        entry = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        row = entry // (HEIGHT * WIDTH * CHANNELS)
        rest = (entry % (HEIGHT * WIDTH * CHANNELS)).to(tl.int32)
        channel = rest % CHANNELS
        y = rest // (CHANNELS * WIDTH) + PH
        x = (rest // CHANNELS) % WIDTH + PW
        start = row * (DOWN * ACROSS * CHANNELS) + channel
        total = tl.zeros([BLOCK], out.dtype.element_ty)
        # The windows that hold this entry: the last to begin before it, and those before that one.
        for i in tl.static_range((KH + SH - 1) // SH):
            for j in tl.static_range((KW + SW - 1) // SW):
                down = y // SH - i
                across = x // SW - j
                below = y - down * SH
                beside = x - across * SW
                there = (down >= 0) & (down < DOWN) & (below < KH) & (entry < size)
                there = there & (across >= 0) & (across < ACROSS) & (beside < KW)
                where = start + (down * ACROSS + across) * CHANNELS
                chosen = tl.load(places + where, mask=there, other=255).to(tl.int32)
                mine = there & (chosen == below * KW + beside)
                total += tl.load(gradient + where, mask=mine, other=0.0)
        tl.store(out + entry, total, mask=entry < size)
