//! The parameter structs of the kernels: what the host writes and a shader reads, byte for byte.
//!
//! Each is declared once. The macro makes the Rust struct and its WGSL twin, so that the two cannot differ;
//! a test compares sizes and offsets with the layout that naga computes. All fields are `u32` or `f32`, and
//! every size is a multiple of 16, as uniform buffers of all APIs require.

mod abi;
mod attention;
mod matmul;
mod rows;
mod select;
#[cfg(test)]
mod tests;

pub use abi::other::*;
pub use abi::rope::*;
pub use attention::*;
pub use matmul::*;
pub use rows::*;
pub use select::*;

use bytemuck::Pod;

/// A parameter struct: its name and its WGSL declaration.
pub trait Params: Pod {
    /// The name in Rust, WGSL and C.
    const NAME: &'static str;
    /// The declaration in WGSL.
    const WGSL: &'static str;
    /// Name, WGSL type and byte offset of each field.
    const FIELDS: &'static [(&'static str, &'static str, usize)];
}

/// Declares parameter structs for Rust and WGSL, and lists them in `LAYOUTS`.
macro_rules! params {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $ty:ident,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Debug, Clone, Copy, PartialEq, Default, ::bytemuck::Pod, ::bytemuck::Zeroable)]
            pub struct $name { $($(#[$field_doc])* pub $field: $ty,)* }

            impl $crate::params::Params for $name {
                const NAME: &'static str = stringify!($name);
                const WGSL: &'static str = concat!(
                    "struct ", stringify!($name), " {\n",
                    $("    ", stringify!($field), ": ", stringify!($ty), ",\n",)*
                    "}\n"
                );
                const FIELDS: &'static [(&'static str, &'static str, usize)] =
                    &[$((stringify!($field), stringify!($ty), std::mem::offset_of!($name, $field)),)*];
            }
        )*

        /// The layouts of the structs above.
        pub(in $crate::params) const LAYOUTS: &[$crate::params::Layout] =
            &[$($crate::params::Layout::of::<$name>(),)*];
    };
}
pub(crate) use params;

/// What a parameter struct looks like.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// Its name.
    pub name: &'static str,
    /// Its WGSL declaration.
    pub wgsl: &'static str,
    /// Its bytes.
    pub size: usize,
    /// Name, WGSL type and byte offset of each field.
    pub fields: &'static [(&'static str, &'static str, usize)],
}

impl Layout {
    const fn of<P: Params>() -> Layout {
        Layout { name: P::NAME, wgsl: P::WGSL, size: size_of::<P>(), fields: P::FIELDS }
    }
}

const GROUPS: [&[Layout]; 6] = [
    matmul::LAYOUTS,
    rows::LAYOUTS,
    attention::LAYOUTS,
    select::LAYOUTS,
    abi::rope::LAYOUTS,
    abi::other::LAYOUTS,
];

const COUNT: usize = {
    let (mut count, mut group) = (0, 0);
    while group < GROUPS.len() {
        count += GROUPS[group].len();
        group += 1;
    }
    count
};

/// Every struct: name, WGSL declaration, size and fields.
pub const ALL: &[Layout] = &{
    let mut all = [GROUPS[0][0]; COUNT];
    let (mut at, mut group) = (0, 0);
    while group < GROUPS.len() {
        let mut i = 0;
        while i < GROUPS[group].len() {
            all[at] = GROUPS[group][i];
            (at, i) = (at + 1, i + 1);
        }
        group += 1;
    }
    all
};

/// The declaration of a struct by its name, for `#include "params/NAME"`.
pub(crate) fn wgsl(name: &str) -> Option<String> {
    ALL.iter().find(|layout| layout.name == name).map(|layout| layout.wgsl.to_owned())
}
