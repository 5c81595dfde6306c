// The activation of a gate: ACTIVATION is silu or gelu_tanh.
fn activated(v: f32) -> f32 {
#if ACTIVATION == silu
    return v / (1.0 + exp(-v));
#else
    // Beyond ten, tanh is one to the last digit, and its quotient of sums would overflow.
    let t = clamp(0.7978845608 * (v + 0.044715 * v * v * v), -10.0, 10.0);
    return 0.5 * v * (1.0 + tanh(t));
#endif
}
