// The rotation of pairs: `x` has their first elements, `y` the second ones. Every kernel that rotates whole pairs calls
// it. Needs ROTATED, the type of the elements: f32, or a vector of f32 for several pairs.

struct Pairs {
    x: ROTATED,
    y: ROTATED,
}

fn rotate_pairs(x: ROTATED, y: ROTATED, cosine: ROTATED, sine: ROTATED) -> Pairs {
    return Pairs(x * cosine - y * sine, x * sine + y * cosine);
}
