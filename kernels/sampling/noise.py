"""``engine.noise`` for kernels: Gumbel noise as a pure function of (seed, position, token)."""

# mypy: disable-error-code="import-untyped,untyped-decorator,no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def gumbel_of_range(seed, position, first_group, GROUPS: tl.constexpr):
    """Noise of the ``4 * GROUPS`` tokens from ``4 * first_group`` on: float32."""
    counters = first_group + tl.arange(0, GROUPS)
    x, y, z, w = _pcg4d(counters, seed, position)
    words = tl.interleave(tl.interleave(x, z), tl.interleave(y, w))
    return _gumbel_of_uniform(_uniform_of_words(words))


@triton.jit
def gumbel_of_tokens(seed, position, tokens):
    """Noise of arbitrary ``tokens [N]``: float32 ``[N]``."""
    return _gumbel_of_uniform(uniform_of_tokens(seed, position, tokens))


@triton.jit
def uniform_of_tokens(seed, position, tokens):
    """Uniform float32 in (0, 1) for arbitrary ``tokens [N]``."""
    x, y, z, w = _pcg4d(tokens // 4, seed, position)
    lane = tokens % 4
    words = tl.where(lane < 2, tl.where(lane == 0, x, y), tl.where(lane == 2, z, w))
    return _uniform_of_words(words)


@triton.jit
def _pcg4d(counters, seed, position):
    """Four uint32 words for each counter (JCGT 9:3, 2020)."""
    x = _step(counters.to(tl.uint32))
    y = _step(tl.full(counters.shape, 0, tl.uint32) + (position & 0xFFFFFFFF).to(tl.uint32))
    z = _step(tl.full(counters.shape, 0, tl.uint32) + (seed & 0xFFFFFFFF).to(tl.uint32))
    w = _step(tl.full(counters.shape, 0, tl.uint32) + (seed >> 32 & 0xFFFFFFFF).to(tl.uint32))
    x, y, z, w = _mix(x, y, z, w)
    x, y, z, w = x ^ (x >> 16), y ^ (y >> 16), z ^ (z >> 16), w ^ (w >> 16)
    return _mix(x, y, z, w)


@triton.jit
def _step(v):
    return v * 1664525 + 1013904223


@triton.jit
def _mix(x, y, z, w):
    x += y * w
    y += z * x
    z += x * y
    w += y * z
    return x, y, z, w


@triton.jit
def _uniform_of_words(words):
    # Below 2**32 even after rounding to float32: both ends of (0, 1) stay open.
    limit = tl.full(words.shape, 4294967040, tl.uint32)
    return (tl.minimum(words, limit).to(tl.float32) + 0.5) * 2.3283064365386963e-10


@triton.jit
def _gumbel_of_uniform(uniform):
    return -tl.log(-_log1p(-uniform))


@triton.jit
def _log1p(x):
    """log(1 + x) to a few units in the last place (Kahan), from a correct logarithm alone."""
    y = 1.0 + x
    return tl.where(y == 1.0, x, tl.log(y) * (x / tl.where(y == 1.0, 1.0, y - 1.0)))
