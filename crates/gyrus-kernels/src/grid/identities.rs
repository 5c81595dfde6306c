//! Laws of rotary embedding.
