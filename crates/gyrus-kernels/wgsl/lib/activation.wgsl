// The activation function ACTIVATION: silu, sigmoid, gelu_tanh, gelu, relu, squared_relu, clamped_swish or tanh.
fn activated(v: f32) -> f32 {
#if ACTIVATION == silu
    return v / (1.0 + exp(-v));
#elif ACTIVATION == sigmoid
    return 1.0 / (1.0 + exp(-v));
#elif ACTIVATION == clamped_swish
    // A selection keeps NaN, which min need not.
    let clamped = select(v, 7.0, v > 7.0);
    return clamped / (1.0 + exp(-1.702 * clamped));
#elif ACTIVATION == squared_relu
    // A selection keeps NaN, which max need not.
    let positive = select(v, 0.0, v < 0.0);
    return positive * positive;
#elif ACTIVATION == relu
    return select(v, 0.0, v < 0.0);
#elif ACTIVATION == tanh
    // As for gelu_tanh.
    return tanh(clamp(v, -10.0, 10.0));
#elif ACTIVATION == gelu
    // v times the cumulative normal distribution at v. Its upper tail, erfc(z) / 2, is exp(-z^2) times a polynomial in
    // 1 / (1 + 0.4 z), fitted so that the product with v is within 1e-8; what remains is rounding in f32.
    let z = abs(v) * 0.70710678;
    let t = 1.0 / fma(0.4, z, 1.0);
    let low = fma(t, fma(t, 0.2450459, 0.07652802), 0.1166604);
    let high = fma(t, fma(t, -0.102143101, 0.3628372), -0.19892845);
    let tail = t * fma(t * t * t, high, low) * exp(-z * z);
    return v * select(1.0 - tail, tail, v < 0.0);
#else
    // Beyond 10, tanh is 1 in f32, and its implementation as a quotient of exponentials would overflow.
    let t = clamp(0.7978845608 * (v + 0.044715 * v * v * v), -10.0, 10.0);
    return 0.5 * v * (1.0 + tanh(t));
#endif
}

// A gate's function times the factor that it gates.
fn gated(gate: f32, up: f32) -> f32 {
#if ACTIVATION == clamped_swish
    let clamped = select(select(up, 7.0, up > 7.0), -7.0, up < -7.0);
    return activated(gate) * (clamped + 1.0);
#else
    return activated(gate) * up;
#endif
}
