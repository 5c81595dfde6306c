// Reduces SUMS values per lane over 32 lanes at once. The lanes must be within one subgroup. Needs SUMS, a power of two
// up to 16, and SUMS_AFTER_16 to SUMS_AFTER_2: the sums a lane still has after the exchange at that distance.
//
// The tree is that of reduce_sum, so the bits are the same. At each distance a lane with several sums keeps half of
// them and sends the other half to its partner. That takes about SUMS shuffles instead of 5·SUMS. At the end lane i has
// sum number i·SUMS / LANES.

fn reduce_many(sums: ptr<function, array<f32, SUMS>>, lane: u32) {
#if SUMS_AFTER_16
    {
        let upper = (lane & 16u) != 0u;
#repeat I SUMS_AFTER_16
        (*sums)[I] = select((*sums)[I], (*sums)[I + SUMS_AFTER_16], upper)
            + subgroupShuffleXor(select((*sums)[I + SUMS_AFTER_16], (*sums)[I], upper), 16u);
#end
    }
#else
    (*sums)[0] += subgroupShuffleXor((*sums)[0], 16u);
#endif
#if SUMS_AFTER_8
    {
        let upper = (lane & 8u) != 0u;
#repeat I SUMS_AFTER_8
        (*sums)[I] = select((*sums)[I], (*sums)[I + SUMS_AFTER_8], upper)
            + subgroupShuffleXor(select((*sums)[I + SUMS_AFTER_8], (*sums)[I], upper), 8u);
#end
    }
#else
    (*sums)[0] += subgroupShuffleXor((*sums)[0], 8u);
#endif
#if SUMS_AFTER_4
    {
        let upper = (lane & 4u) != 0u;
#repeat I SUMS_AFTER_4
        (*sums)[I] = select((*sums)[I], (*sums)[I + SUMS_AFTER_4], upper)
            + subgroupShuffleXor(select((*sums)[I + SUMS_AFTER_4], (*sums)[I], upper), 4u);
#end
    }
#else
    (*sums)[0] += subgroupShuffleXor((*sums)[0], 4u);
#endif
#if SUMS_AFTER_2
    {
        let upper = (lane & 2u) != 0u;
#repeat I SUMS_AFTER_2
        (*sums)[I] = select((*sums)[I], (*sums)[I + SUMS_AFTER_2], upper)
            + subgroupShuffleXor(select((*sums)[I + SUMS_AFTER_2], (*sums)[I], upper), 2u);
#end
    }
#else
    (*sums)[0] += subgroupShuffleXor((*sums)[0], 2u);
#endif
    (*sums)[0] += subgroupShuffleXor((*sums)[0], 1u);
}
