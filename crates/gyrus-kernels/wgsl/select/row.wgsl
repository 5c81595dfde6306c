// What the kernels that draw have in common: the state of the row, sums over the workgroup and the sorted candidates. Needs
// logits, params and scan.wgsl.

// The capacity of the candidate buffer, and how many candidates are sorted by counting those before each.
const CANDIDATES: u32 = 1024u;
const FEW_CANDIDATES: u32 = 128u;

const NONE: u32 = 0xffffffffu;
// 256 bins of four words for the radix passes. Candidates need fewer bins of one word, then a list of chunks.
const BINS: u32 = 1024u;

// The state of the row.
var<private> base: u32;
var<private> max_key: u32;
var<private> max_logit: f32;
var<private> inverse: f32;

var<workgroup> bins: array<atomic<u32>, BINS>;
// (key, token).
var<workgroup> candidates: array<vec2<u32>, CANDIDATES>;
var<workgroup> largest: atomic<u32>;
var<workgroup> found: atomic<u32>;
var<workgroup> chosen: atomic<u32>;
var<workgroup> sum_low: atomic<u32>;
var<workgroup> sum_high: atomic<u32>;
// Values that one invocation broadcasts to the workgroup.
var<workgroup> broadcast_slot: SlotState;
var<workgroup> broadcast: u32;
var<workgroup> broadcast_mass: vec2<u32>;

// Adds to the 64-bit sum in workgroup memory.
fn add_shared(value: vec2<u32>) {
    let old = atomicAdd(&sum_low, value.x);
    atomicAdd(&sum_high, value.y + select(0u, 1u, old + value.x < old));
}

fn shared_sum() -> vec2<u32> {
    return vec2<u32>(atomicLoad(&sum_low), atomicLoad(&sum_high));
}

fn mass_of(key: u32) -> vec2<u32> {
    return mass(relative_probability(distance_to_max(key, max_logit, inverse)));
}

// Keys of four tokens of the row, NO_KEY for those beyond the vocabulary or not allowed.
fn keys_at(at: vec4<u32>) -> vec4<u32> {
    let inside = vec4<u32>(base) + min(at, vec4<u32>(params.vocab - 1u));
    return keys_of(vec4<u32>(logits[inside.x], logits[inside.y], logits[inside.z], logits[inside.w]), at);
}

fn is_before(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.x > b.x || (a.x == b.x && a.y < b.y);
}

// Sorts the candidates. All invocations must call it, with the same count.
fn sort(count: u32) {
    if (count <= FEW_CANDIDATES) {
        sort_few(count);
    } else {
        sort_many(count);
    }
}

// The rank of each candidate is the number of candidates before it.
fn sort_few(count: u32) {
    var own: vec2<u32>;
    var rank = 0u;
    if (lane < count) {
        own = candidates[lane];
        for (var j = 0u; j < count; j += 1u) {
            rank += select(0u, 1u, is_before(candidates[j], own));
        }
    }
    workgroupBarrier();
    if (lane < count) {
        candidates[rank] = own;
    }
    workgroupBarrier();
}

// Bitonic: its steps grow with the square of the logarithm of the count.
fn sort_many(count: u32) {
    var size = 2u * FEW_CANDIDATES;
    while (size < count) {
        size *= 2u;
    }
    for (var i = count + lane; i < size; i += WORKGROUP) {
        candidates[i] = vec2<u32>(NO_KEY, NONE);
    }
    for (var ordered = 2u; ordered <= size; ordered *= 2u) {
        for (var stride = ordered / 2u; stride > 0u; stride /= 2u) {
            workgroupBarrier();
            for (var pair = lane; pair < size / 2u; pair += WORKGROUP) {
                let low = 2u * pair - (pair & (stride - 1u));
                let first = candidates[low];
                let second = candidates[low + stride];
                if (is_before(first, second) != ((low & ordered) == 0u)) {
                    candidates[low] = second;
                    candidates[low + stride] = first;
                }
            }
        }
    }
    workgroupBarrier();
}
