use super::Storage;
use super::engine::{Heads, Kernel, MOST_SPLITS, Paged, SPLIT_TILE, check_rows, flag, launch, slot};
use super::quantize::{Target, partial_bytes};
use crate::launch::{Access, Launch, LaunchError};
use crate::params::AttendParams;
use crate::shader::Rungs;

/// Invocations that take a tile together.
const CREW: u32 = 256;

/// Who takes the parts that a row's attention is divided into, and puts them together. The bits are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parts {
    /// A workgroup each, for rows of at most so many; whoever reads `partials` puts them together. It is how few rows
    /// keep a device busy.
    Apart {
        /// Parts of the row that has most, see [`splits`](super::engine::splits).
        splits: u32,
    },
    /// One workgroup all of them, which then makes bytes of the result, for a [mat-vec](super::MatVecCall): `q` and
    /// `q_scales`.
    Gathered {
        /// 1 or 2 crews of 256 invocations, which take parts in turns.
        crews: u32,
    },
}

/// Attention of few rows, each divided into [parts](Parts).
///
/// With `turn`, for rows of different sequences, it also does what [`rope_write`](super::engine::rope_write) does.
/// Buffers: `qkv`, `k_cache`, `v_cache`, `rows`, `block_table`, `partials`, with `turn` `turns` and, if heads are
/// normalised, `head_norms`; gathered `q` and `q_scales`, which make it more than the eight storage buffers that every
/// device binds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttendCall {
    /// What the kernel is told.
    pub params: AttendParams,
    /// What happens to heads before.
    pub heads: Heads,
    /// Whether it does happen here, and keys and values are written.
    pub turn: bool,
    /// How a row is divided.
    pub parts: Parts,
    /// Where its only row is, if the parameters are to tell: then no load stands before others. `rows` is not read, and
    /// the row's block table is the first.
    pub position: Option<u32>,
    /// The cache, and how many rows there are.
    pub paged: Paged,
}

impl AttendCall {
    /// Checks the call and makes it a launch.
    pub fn launch(&self, rungs: Rungs) -> Result<Launch, LaunchError> {
        let AttendCall { params, heads, turn, parts, position, paged } = *self;
        let p = AttendParams { position: position.unwrap_or(0), ..params };
        let (name, file) = match parts {
            Parts::Apart { .. } => ("attend", "engine/attend.wgsl"),
            Parts::Gathered { .. } => ("attend_gathered", "engine/attend_gathered.wgsl"),
        };
        let head_dim = heads.head_dim;
        paged.check(name, head_dim)?;
        check_rows(name, &p, head_dim)?;
        if turn {
            heads.check(name, &p)?;
        }
        if paged.kv != Storage::F16 {
            return Err(LaunchError::Storage { kernel: name.to_owned(), storage: paged.kv.name() });
        }
        if !head_dim.is_multiple_of(32) {
            let (kernel, value) = (name.to_owned(), head_dim);
            return Err(LaunchError::NotMultiple { kernel, name: "head_dim", value, of: 32 });
        }
        let crews = self.crews();
        if !matches!(crews, 1 | 2) {
            let (kernel, needed) = (name.to_owned(), "1 or 2");
            return Err(LaunchError::Tuning { kernel, name: "crews", value: crews, needed });
        }
        let rows = u64::from(paged.rows);
        let cache = paged.cache_words(p.n_kv_heads, head_dim);
        let access = if turn { Access::ReadWrite } else { Access::Read };
        let mut slots = vec![
            slot("qkv", 0, Access::Read, rows * u64::from(p.stride)),
            slot("k_cache", 1, access, cache),
            slot("v_cache", 2, access, cache),
            slot("block_table", 5, Access::Read, paged.entries.into()),
            slot("partials", 6, Access::ReadWrite, partial_bytes(rows, p.n_heads, head_dim) / 4),
        ];
        if position.is_none() {
            slots.push(slot("rows", 4, Access::Read, 2 * rows));
        } else if paged.rows > 1 {
            let (kernel, count) = (name.to_owned(), rows);
            return Err(LaunchError::Large { kernel, what: "rows of which the only one is", count });
        }
        if turn {
            slots.push(slot("turns", 7, Access::Read, heads.turns(&p, rows.max(1)) / 4));
            if heads.norm {
                slots.push(slot("head_norms", 8, Access::Read, 2 * u64::from(head_dim)));
            }
        }
        if let Parts::Gathered { .. } = parts {
            slots.extend(Target::Bytes.slots(paged.rows, p.n_heads * head_dim, [9, 10]));
        }
        let (group, groups) = self.group();
        let shares = self.shares();
        let mut constants = paged.constants(head_dim);
        constants.extend(heads.constants());
        let number = |name, value: u32| (name, value.to_string());
        constants.extend([
            flag("TURN", turn),
            flag("POSITION", position.is_some()),
            number("GROUP", group),
            number("GROUPS", groups),
            number("HEADS_PER_KV", p.n_heads / p.n_kv_heads),
            number("FETCH", head_dim / 32),
            number("OUTPUTS", self.outputs()),
            number("OWN", self.outputs().div_ceil(CREW)),
            number("SHARES", shares),
            number("TOGETHER", (SPLIT_TILE / shares).min(16)),
            ("CREWS", format!("{crews}u")),
            ("SLOTS", format!("{}u", self.kept())),
            ("WORKGROUP", format!("{}u", self.invocations())),
        ]);
        let kernel = Kernel { name, file, constants, overrides: Vec::new() };
        let splits = match parts {
            Parts::Apart { splits } => splits,
            Parts::Gathered { .. } => 1,
        };
        let mut launch = launch(kernel, rungs, slots, (3, &p), [splits, self.workgroups()])?;
        if paged.rows == 0 {
            return Err(LaunchError::Zero { kernel: name.to_owned(), name: "the number of rows" });
        }
        if paged.rows > 65_535 {
            let (kernel, count) = (name.to_owned(), paged.rows.into());
            return Err(LaunchError::Large { kernel, what: "rows", count });
        }
        launch.groups[2] = paged.rows;
        Ok(launch)
    }

    /// Where the parameters have the row's position, if they tell it.
    pub fn position_at(&self) -> Option<usize> {
        self.position.map(|_| std::mem::offset_of!(AttendParams, position))
    }

    /// Bytes of workgroup memory that it takes; there are devices with 16 KiB.
    pub fn workgroup_bytes(&self) -> u64 {
        let (group, head) = (u64::from(self.group().0), u64::from(self.heads.head_dim));
        let tile = u64::from(SPLIT_TILE);
        let gathered = matches!(self.parts, Parts::Gathered { .. });
        let shares = if gathered && self.shares() > 1 { 8 * u64::from(CREW) } else { 0 };
        let crew = 4 * (5 * group * tile + group) + 2 * tile * head + shares;
        let kept = 2 * group * u64::from(self.kept());
        4 * (group * head + kept + 2 * head + u64::from(self.invocations())) + u64::from(self.crews()) * crew
    }

    /// Invocations of a workgroup.
    pub fn invocations(&self) -> u32 {
        self.crews().saturating_mul(CREW)
    }

    /// Workgroups of a row, if one takes all of its parts.
    pub fn workgroups(&self) -> u32 {
        self.params.n_kv_heads * self.group().1
    }

    fn crews(&self) -> u32 {
        match self.parts {
            Parts::Apart { .. } => 1,
            Parts::Gathered { crews } => crews,
        }
    }

    /// Splits whose largest scores and sums of weights a workgroup keeps.
    fn kept(&self) -> u32 {
        match self.parts {
            Parts::Apart { .. } => 1,
            Parts::Gathered { .. } => MOST_SPLITS,
        }
    }

    /// How many of the heads that share a key head one workgroup takes, and in how many groups.
    fn group(&self) -> (u32, u32) {
        let heads = (self.params.n_heads / self.params.n_kv_heads.max(1)).max(1);
        let groups = heads.div_ceil(8);
        (heads.div_ceil(groups), groups)
    }

    /// Pairs of elements that a crew sums.
    fn outputs(&self) -> u32 {
        self.group().0 * self.heads.head_dim / 2
    }

    /// Shares divide the positions of a tile among those who would have nothing to sum.
    fn shares(&self) -> u32 {
        match CREW / self.outputs().max(1) {
            0 => 1,
            each => 1 << each.ilog2(),
        }
    }
}
