// What the kernels that draw have in common: the state of the row, sums over the workgroup, random numbers and the sorted
// candidates. Needs logits, params and random.wgsl.

// A power of two from 256 on.
override WORKGROUP: u32 = 256u;
// The capacity of the candidate buffer, and the most candidates that an invocation sorts.
const CANDIDATES: u32 = 1024u;
const CANDIDATES_PER_INVOCATION: u32 = 4u;

const NONE: u32 = 0xffffffffu;
// 256 bins of four words for the radix passes. Candidates need fewer bins of one word, then a list of chunks.
const BINS: u32 = 1024u;

// The state of the row.
var<private> lane: u32;
var<private> base: u32;
var<private> max_key: u32;
var<private> max_logit: f32;
var<private> inverse: f32;
#if SUBGROUPS
// Shuffles reach lanes at a distance below this: the subgroup size, or 1 if shuffles cannot be used.
var<private> shuffle_width: u32;
var<private> subgroup_lane: u32;
#endif

var<workgroup> bins: array<atomic<u32>, BINS>;
// (key, token).
var<workgroup> candidates: array<vec2<u32>, CANDIDATES>;
var<workgroup> scan_low: array<u32, WORKGROUP>;
var<workgroup> scan_high: array<u32, WORKGROUP>;
var<workgroup> largest: atomic<u32>;
var<workgroup> found: atomic<u32>;
var<workgroup> chosen: atomic<u32>;
var<workgroup> sum_low: atomic<u32>;
var<workgroup> sum_high: atomic<u32>;
// Values that one invocation broadcasts to the workgroup.
var<workgroup> broadcast_slot: SlotState;
var<workgroup> broadcast: u32;
var<workgroup> broadcast_mass: vec2<u32>;

// Inclusive prefix sum over the workgroup. All invocations must call it. Values are exchanged by shuffles within a
// subgroup and through workgroup memory between subgroups.
fn scan(value: vec2<u32>) -> vec2<u32> {
    var sum = value;
    var stride = 1u;
#if SUBGROUPS
    for (; stride < shuffle_width; stride *= 2u) {
        let other = vec2<u32>(subgroupShuffleUp(sum.x, stride), subgroupShuffleUp(sum.y, stride));
        if (subgroup_lane >= stride) {
            sum = add64(sum, other);
        }
    }
    // Now add the totals of the preceding subgroups, each of `stride` invocations.
    let block = lane / stride;
    workgroupBarrier();
    if (lane % stride == stride - 1u) {
        scan_low[block] = sum.x;
        scan_high[block] = sum.y;
    }
    workgroupBarrier();
    for (var i = 0u; i < block; i += 1u) {
        sum = add64(sum, vec2<u32>(scan_low[i], scan_high[i]));
    }
#else
    for (; stride < WORKGROUP; stride *= 2u) {
        workgroupBarrier();
        scan_low[lane] = sum.x;
        scan_high[lane] = sum.y;
        workgroupBarrier();
        if (lane >= stride) {
            sum = add64(sum, vec2<u32>(scan_low[lane - stride], scan_high[lane - stride]));
        }
    }
#endif
    return sum;
}

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

// Sorts the candidates: the rank of each is the number of candidates before it.
fn sort(count: u32) {
    var own: array<vec2<u32>, CANDIDATES_PER_INVOCATION>;
    var ranks: array<u32, CANDIDATES_PER_INVOCATION>;
    for (var i = 0u; i < CANDIDATES_PER_INVOCATION; i += 1u) {
        if (i * WORKGROUP + lane < count) {
            let candidate = candidates[i * WORKGROUP + lane];
            var rank = 0u;
            for (var j = 0u; j < count; j += 1u) {
                let other = candidates[j];
                let is_before = other.x > candidate.x || (other.x == candidate.x && other.y < candidate.y);
                rank += select(0u, 1u, is_before);
            }
            own[i] = candidate;
            ranks[i] = rank;
        }
    }
    workgroupBarrier();
    for (var i = 0u; i < CANDIDATES_PER_INVOCATION; i += 1u) {
        if (i * WORKGROUP + lane < count) {
            candidates[ranks[i]] = own[i];
        }
    }
    workgroupBarrier();
}
