// The activation function ACTIVATION: silu, sigmoid, gelu_tanh, gelu, squared_relu or clamped_swish.
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
    let positive = max(v, 0.0);
    return positive * positive;
#elif ACTIVATION == gelu
    // v times the cumulative normal distribution at v. Its upper tail is a polynomial times exp(-v^2 / 2), within 1e-7
    // (Abramowitz and Stegun, 7.1.26).
    let z = abs(v) * 0.70710678;
    let t = 1.0 / (1.0 + 0.3275911 * z);
    let poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
    let tail = 0.5 * poly * exp(-z * z);
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
