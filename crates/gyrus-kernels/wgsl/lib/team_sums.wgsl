// Many sums over a team at once, for teams within a subgroup. Needs SUMS, a power of two up to 16, and KEPT_16 to
// KEPT_2.
//
// It is the tree of team_sum, to the bit. But at each distance a lane keeps one half of its sums, KEPT of them, and
// gives the other half away, as long as it has more than one: there are then about as many exchanges as sums, and not
// five times as many. In the end a lane has sum number lane·SUMS / LANES.

fn team_sums(sums: ptr<function, array<f32, SUMS>>, lane: u32) {
#if KEPT_16
    {
        let upper = (lane & 16u) != 0u;
#repeat I KEPT_16
        (*sums)[I] = select((*sums)[I], (*sums)[I + KEPT_16], upper)
            + subgroupShuffleXor(select((*sums)[I + KEPT_16], (*sums)[I], upper), 16u);
#end
    }
#else
    (*sums)[0] += subgroupShuffleXor((*sums)[0], 16u);
#endif
#if KEPT_8
    {
        let upper = (lane & 8u) != 0u;
#repeat I KEPT_8
        (*sums)[I] = select((*sums)[I], (*sums)[I + KEPT_8], upper)
            + subgroupShuffleXor(select((*sums)[I + KEPT_8], (*sums)[I], upper), 8u);
#end
    }
#else
    (*sums)[0] += subgroupShuffleXor((*sums)[0], 8u);
#endif
#if KEPT_4
    {
        let upper = (lane & 4u) != 0u;
#repeat I KEPT_4
        (*sums)[I] = select((*sums)[I], (*sums)[I + KEPT_4], upper)
            + subgroupShuffleXor(select((*sums)[I + KEPT_4], (*sums)[I], upper), 4u);
#end
    }
#else
    (*sums)[0] += subgroupShuffleXor((*sums)[0], 4u);
#endif
#if KEPT_2
    {
        let upper = (lane & 2u) != 0u;
#repeat I KEPT_2
        (*sums)[I] = select((*sums)[I], (*sums)[I + KEPT_2], upper)
            + subgroupShuffleXor(select((*sums)[I + KEPT_2], (*sums)[I], upper), 2u);
#end
    }
#else
    (*sums)[0] += subgroupShuffleXor((*sums)[0], 2u);
#endif
    (*sums)[0] += subgroupShuffleXor((*sums)[0], 1u);
}
