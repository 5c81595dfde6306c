// 1 / rms of a row of K elements, from the sums of squares of its blocks of 32. Every kernel that uses it gets the same
// bits. Needs lib/lanes.wgsl, K, parameters with eps, and `squares`, an array of K / 32 f32 in workgroup memory.

// All invocations of a workgroup must call it together.
fn inverse_rms(thread: Thread) -> f32 {
    var sum = 0.0;
    for (var block = thread.index % LANES; block < K / 32u; block += LANES) {
        sum += squares[block];
    }
    return inverseSqrt(reduce_sum(sum, thread) / f32(K) + params.eps);
}
