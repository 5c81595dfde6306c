// The rows of a sequence in a batch, and its records of state. Needs bindings `runs` and `rows`.

struct Run {
    first: u32,
    count: u32,
    // The record that is read and the one that is written. NO_RECORD stands for a state of zeros.
    source: u32,
    sink: u32,
}

const NO_RECORD: u32 = 0xffffffffu;
// Flag of a count: the position of the row decides which of the two records is read, the second if it is odd.
const BY_PARITY: u32 = 0x80000000u;

fn run_at(i: u32) -> Run {
    let words = runs[i];
    let count = words.y & ~BY_PARITY;
    let odd = (words.y & BY_PARITY) != 0u && (rows[2u * words.x] & 1u) == 1u;
    return Run(words.x, count, select(words.z, words.w, odd), select(words.w, words.z, odd));
}
