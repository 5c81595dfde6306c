use super::Storage;
use super::engine::{
    Heads, Kernel, MOST_SPLITS, Paged, SPLIT_TILE, check_cache, check_rows, flag, launch, slot,
};
use super::quantize::{Target, partial_bytes};
use crate::kv::KV_BLOCK;
use crate::launch::{Access, Launch, LaunchError, Slot};
use crate::params::AttendParams;
use crate::shader::Rungs;

/// Invocations of a workgroup.
const WORKGROUP: u32 = 256;
/// Lanes of a lane group.
const LANES: u32 = 32;
/// The most query heads of a workgroup, and the most elements of them.
const MOST_GROUP: u32 = 8;
const MOST_GROUP_ELEMENTS: u32 = 1024;
/// The most head elements of several tiles that fit in registers.
const MOST_HELD: u32 = 256;

/// How the splits of a row's attention are distributed over workgroups. Every mode computes the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SplitMode {
    /// One workgroup per split, so that few rows keep a device busy. The consumer merges `partials`.
    Separate {
        /// The most splits that any row has, see [`splits`](super::engine::splits).
        splits: u32,
    },
    /// One workgroup for all splits of a row. It merges them and quantises the result to int8 for a
    /// [mat-vec](super::MatVecCall): `q` and `q_scales`.
    Gathered {
        /// Splits that a workgroup attends to at once. Registers limit it: 4 for heads of up to 64 elements, 2 for up to
        /// 128, else 1.
        tiles: u32,
        /// Whether partial sums stay in workgroup memory instead of `partials`.
        kept: bool,
    },
}

/// Attention of few rows over splits of the KV cache (flash decoding).
///
/// With `rotate`, for rows of different sequences, it also rotates Q and K and writes K and V to the cache, as
/// [`rope_write`](super::engine::rope_write) does. Buffers: `qkv`, `k_cache`, `v_cache`, `rows`, `block_table`,
/// `partials`; with `rotate` `turns` and, if heads are normalised, `head_norms`; gathered `q` and `q_scales`. The
/// gathered form needs more than the eight storage buffers that every device binds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttendCall {
    /// The kernel's parameters.
    pub params: AttendParams,
    /// Norm and rotary embedding of the heads.
    pub heads: Heads,
    /// Whether this kernel rotates heads and writes K and V.
    pub rotate: bool,
    /// How a row's splits are distributed.
    pub mode: SplitMode,
    /// The position of the only row, if it is a parameter, which saves a dependent load. `rows` is not read then, and
    /// the row's block table is the first.
    pub position: Option<u32>,
    /// Whether each head has a sink, a score that joins the softmax: `sinks`.
    pub sinks: bool,
    /// The cache, and the number of rows.
    pub paged: Paged,
}

impl AttendCall {
    /// The kernel's name and file.
    fn kernel(&self) -> (&'static str, &'static str) {
        match self.mode {
            SplitMode::Separate { .. } => ("attend", "engine/attend.wgsl"),
            SplitMode::Gathered { .. } => ("attend_gathered", "engine/attend_gathered.wgsl"),
        }
    }

    /// Checks the call: whether there is a kernel for it, whatever the device.
    pub fn check(&self) -> Result<(), LaunchError> {
        let AttendCall { params: p, heads, rotate, mode, position, paged, .. } = *self;
        let (name, _) = self.kernel();
        let head_dim = paged.cache.head_dim;
        check_cache(name, &paged.cache)?;
        check_rows(name, &p, &paged.cache, rotate)?;
        if rotate {
            heads.check(name, &p, head_dim)?;
        }
        if paged.cache.kv != Storage::F16 {
            return Err(LaunchError::Storage { kernel: name.to_owned(), storage: paged.cache.kv.name() });
        }
        if !head_dim.is_multiple_of(32) {
            let (kernel, value) = (name.to_owned(), head_dim);
            return Err(LaunchError::NotMultiple { kernel, name: "head_dim", value, of: 32 });
        }
        if let SplitMode::Gathered { tiles, .. } = mode
            && (!matches!(tiles, 1 | 2 | 4) || (tiles > 1 && tiles * head_dim > MOST_HELD))
        {
            let (kernel, needed) = (name.to_owned(), "1, or 2 or 4 of small heads");
            return Err(LaunchError::Tuning { kernel, name: "tiles", value: tiles, needed });
        }
        if position.is_some() && paged.rows > 1 {
            let (kernel, count) = (name.to_owned(), paged.rows.into());
            return Err(LaunchError::Large {
                kernel,
                what: "rows, where the position is a parameter of the only one,",
                count,
            });
        }
        if paged.rows == 0 {
            return Err(LaunchError::Zero { kernel: name.to_owned(), name: "the number of rows" });
        }
        if paged.rows > 65_535 {
            let (kernel, count) = (name.to_owned(), paged.rows.into());
            return Err(LaunchError::Large { kernel, what: "rows", count });
        }
        Ok(())
    }

    /// Storage buffers that it binds.
    pub fn storage_buffers(&self) -> usize {
        self.slots().len()
    }

    fn slots(&self) -> Vec<Slot> {
        let AttendCall { params: p, heads, rotate, mode, position, sinks, paged } = *self;
        let head_dim = paged.cache.head_dim;
        let rows = u64::from(paged.rows);
        let cache = paged.cache.words();
        let access = if rotate { Access::ReadWrite } else { Access::Read };
        let mut slots = vec![
            slot("qkv", 0, Access::Read, rows * u64::from(p.stride)),
            slot("k_cache", 1, access, cache),
            slot("v_cache", 2, access, cache),
            slot("block_table", 5, Access::Read, paged.entries.into()),
            slot("partials", 6, Access::ReadWrite, partial_bytes(rows, p.n_heads, head_dim) / 4),
        ];
        if position.is_none() {
            slots.push(slot("rows", 4, Access::Read, 2 * rows));
        }
        if rotate {
            slots.push(slot("turns", 7, Access::Read, heads.turns(&p, rows.max(1)) / 4));
            if heads.norm {
                slots.push(slot("head_norms", 8, Access::Read, 2 * u64::from(head_dim)));
            }
        }
        if sinks {
            slots.push(slot("sinks", 11, Access::Read, p.n_heads.into()));
        }
        if let SplitMode::Gathered { .. } = mode {
            slots.extend(Target::Int8.slots(paged.rows, p.n_heads * head_dim, [9, 10]));
        }
        slots
    }

    /// Checks the call and makes it a launch.
    pub fn launch(&self, rungs: Rungs) -> Result<Launch, LaunchError> {
        self.check()?;
        let AttendCall { params, heads, rotate, mode, position, sinks, paged } = *self;
        let p = AttendParams { position: position.unwrap_or(0), ..params };
        let (name, file) = self.kernel();
        let head_dim = paged.cache.head_dim;
        let (group, groups) = self.group();
        let parts = self.parts();
        let mut constants = paged.constants();
        constants.extend(heads.constants(paged.cache.head_dim));
        let number = |name, value: u32| (name, value.to_string());
        constants.extend([
            flag("ROTATE", rotate),
            flag("SINKS", sinks),
            flag("POSITION", position.is_some()),
            number("GROUP", group),
            number("GROUPS", groups),
            number("HEADS_PER_KV", p.n_heads / p.n_kv_heads),
            number("KEY_LOADS", head_dim / 32),
            number("PARTS", parts),
        ]);
        match mode {
            SplitMode::Separate { .. } => constants.extend([
                number("OUTPUTS", self.outputs()),
                number("OUTPUTS_PER_INVOCATION", self.outputs().div_ceil(WORKGROUP)),
                number("VALUE_UNROLL", (SPLIT_TILE / parts).min(16)),
            ]),
            SplitMode::Gathered { tiles, kept } => {
                let (share, queries) = (SPLIT_TILE / parts, group * head_dim / 32);
                let softmax_lanes = if tiles * group > WORKGROUP / LANES { LANES / 2 } else { LANES };
                constants.extend([
                    number("TILES", tiles),
                    flag("SUMS_IN_WORKGROUP", kept),
                    number("PART_POSITIONS", share),
                    number("PART_VECTORS", share / 4),
                    number("PART_POSITIONS_IN_BLOCK", share.min(KV_BLOCK as u32)),
                    number("PART_BLOCKS", share.div_ceil(KV_BLOCK as u32)),
                    number("QUERIES", queries),
                    // With larger heads, keys and values leave no registers for them.
                    flag("QUERIES_IN_REGISTERS", queries <= 8 && head_dim <= 64),
                    number("VALUE_ITERATIONS", (tiles * parts * head_dim / 2).div_ceil(WORKGROUP)),
                    number("SOFTMAX_LANES", softmax_lanes),
                    number("SCORES_PER_LANE", SPLIT_TILE / softmax_lanes),
                    number("SOFTMAX_ITERATIONS", (tiles * group).div_ceil(WORKGROUP / softmax_lanes)),
                ]);
            }
        }
        let kernel = Kernel { name, file, constants, overrides: Vec::new() };
        let splits = match mode {
            SplitMode::Separate { splits } => splits,
            SplitMode::Gathered { .. } => 1,
        };
        let mut launch = launch(kernel, rungs, self.slots(), (3, &p), [splits, self.workgroups()])?;
        launch.groups[2] = paged.rows;
        Ok(launch)
    }

    /// The byte offset of the row's position in the parameters, if it is a parameter.
    pub fn position_at(&self) -> Option<usize> {
        self.position.map(|_| std::mem::offset_of!(AttendParams, position))
    }

    /// Bytes of workgroup memory it needs. Some devices have 16 KiB.
    pub fn workgroup_bytes(&self) -> u64 {
        let (group, head) = (u64::from(self.group().0), u64::from(self.paged.cache.head_dim));
        let (tile, most) = (u64::from(SPLIT_TILE), u64::from(MOST_SPLITS));
        // Queries, the row's own key and value, exchanged values.
        let common = 4 * (group * head + 2 * head + u64::from(WORKGROUP));
        common
            + match self.mode {
                SplitMode::Separate { .. } => 4 * (5 * group * tile + 3 * group) + 2 * tile * head,
                SplitMode::Gathered { tiles, kept } => {
                    let tiles = u64::from(tiles);
                    let sums = if kept { most * group * head } else { 0 };
                    4 * (2 * tiles * (group * tile + 8) + tiles * group + 2 * most * group + sums)
                }
            }
    }

    /// Invocations of a workgroup.
    pub fn invocations(&self) -> u32 {
        WORKGROUP
    }

    /// Workgroups of a row and split.
    pub fn workgroups(&self) -> u32 {
        self.params.n_kv_heads * self.group().1
    }

    /// Elements of the query heads that one workgroup computes.
    pub fn query_elements(&self) -> u32 {
        self.group().0 * self.paged.cache.head_dim
    }

    /// Query heads of a KV head that one workgroup computes, and the number of such groups. Four of 256 elements and a tile
    /// of their values take 45 KiB of workgroup memory, and many devices have 48.
    fn group(&self) -> (u32, u32) {
        let heads = (self.params.n_heads / self.params.n_kv_heads.max(1)).max(1);
        let most = (MOST_GROUP_ELEMENTS / self.paged.cache.head_dim.max(1)).clamp(1, MOST_GROUP);
        let groups = heads.div_ceil(most);
        (heads.div_ceil(groups), groups)
    }

    /// Pairs of output elements of a workgroup.
    fn outputs(&self) -> u32 {
        self.group().0 * self.paged.cache.head_dim / 2
    }

    /// Parts that a tile's positions are divided into for the sum of values, so that all invocations have work.
    fn parts(&self) -> u32 {
        match WORKGROUP / self.outputs().max(1) {
            0 => 1,
            each => 1 << each.ilog2(),
        }
    }
}
