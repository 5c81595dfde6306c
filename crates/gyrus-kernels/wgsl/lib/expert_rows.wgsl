// Rows of the weights of EXPERT_COUNT experts. The matrix consists of PARTS weights, 1 or 2; each has the rows of all
// experts, one below the other.

// The row of the matrix that is row `row` of an expert's n.
fn expert_row(expert: u32, row: u32, n: u32) -> u32 {
    let part_rows = n / PARTS;
#if PARTS == 1
    return expert * part_rows + row;
#else
    // The second part begins behind the first of all experts.
    return expert * part_rows + row + select(0u, part_rows * (EXPERT_COUNT - 1u), row >= part_rows);
#endif
}
