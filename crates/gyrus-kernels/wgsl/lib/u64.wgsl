// Unsigned 64-bit integers as (low, high) words.

fn add64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn subtract64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

fn less64(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.y < b.y || (a.y == b.y && a.x < b.x);
}

fn shift_right64(a: vec2<u32>, by: u32) -> vec2<u32> {
    // By 1 to 31.
    return vec2<u32>((a.x >> by) | (a.y << (32u - by)), a.y >> by);
}

// The full 64-bit product of two words.
fn product(a: u32, b: u32) -> vec2<u32> {
    let al = a & 0xffffu;
    let ah = a >> 16u;
    let bl = b & 0xffffu;
    let bh = b >> 16u;
    let low = al * bl;
    // Neither sum overflows: (2^16 - 1)^2 + 2 (2^16 - 1) = 2^32 - 1.
    let middle = ah * bl + (low >> 16u);
    let cross = al * bh + (middle & 0xffffu);
    return vec2<u32>((cross << 16u) | (low & 0xffffu), ah * bh + (middle >> 16u) + (cross >> 16u));
}

// The low 64 bits of a product.
fn multiply64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = product(a.x, b.x);
    return vec2<u32>(low.x, low.y + a.x * b.y + a.y * b.x);
}

// a·(b / 2^32), rounded down.
fn fraction64(a: vec2<u32>, b: u32) -> vec2<u32> {
    return add64(product(a.y, b), vec2<u32>(product(a.x, b).y, 0u));
}
