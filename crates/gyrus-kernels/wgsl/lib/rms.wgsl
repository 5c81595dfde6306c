// 1 / rms of a row of K elements from the sums of squares of its blocks of 32, the same bits whoever makes it. Needs
// lib/lanes.wgsl, K, parameters with eps, and `squares`, an array of K / 32 in workgroup memory.

// All invocations of a workgroup must call it together.
fn inverse_rms(here: Member) -> f32 {
    var sum = 0.0;
    for (var block = here.place % LANES; block < K / 32u; block += LANES) {
        sum += squares[block];
    }
    return inverseSqrt(team_sum(sum, here) / f32(K) + params.eps);
}
