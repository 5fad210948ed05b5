//! Messages field by field: each is written once, and becomes the message itself or, without a message in between, its bytes.
//!
//! What is written says which field it means by one of the constants that the build makes of the `.proto` files: a constant
//! has the number of its field on the wire, and finds the field in the message.

use std::{
    collections::{BTreeMap, HashMap},
    marker::PhantomData,
    mem,
};

use crate::v1;

include!(concat!(env!("OUT_DIR"), "/fields.rs"));

/// A field of the message `M` that has the type `V` there.
pub struct Field<M, V> {
    /// Its number on the wire.
    pub number: u32,
    /// The field of a message.
    pub of: fn(&mut M) -> &mut V,
}

/// A number as the wire has it.
pub trait Number: Copy + Default + PartialEq {
    /// Its bits; negative ones have all of the upper ones.
    fn bits(self) -> u64;
}

impl Number for bool {
    fn bits(self) -> u64 {
        self.into()
    }
}

impl Number for u32 {
    fn bits(self) -> u64 {
        self.into()
    }
}

impl Number for u64 {
    fn bits(self) -> u64 {
        self
    }
}

impl Number for i32 {
    fn bits(self) -> u64 {
        i64::from(self).cast_unsigned()
    }
}

impl Number for i64 {
    fn bits(self) -> u64 {
        self.cast_unsigned()
    }
}

/// Takes the fields of a message one by one, in the order of their numbers.
pub trait FieldSink<M> {
    /// Takes those of a message inside.
    type Inside<N: Default>: FieldSink<N>;

    /// A number, or the value of an enumeration.
    fn number<V: Number>(&mut self, field: Field<M, V>, value: V);

    /// A number that can be absent.
    fn optional<V: Number>(&mut self, field: Field<M, Option<V>>, value: Option<V>);

    /// Numbers, one after the other.
    fn numbers(&mut self, field: Field<M, Vec<u32>>, values: &[u32]);

    /// A text; an empty one is none.
    fn text(&mut self, field: Field<M, String>, text: &str);

    /// Texts, one after the other.
    fn texts(&mut self, field: Field<M, Vec<String>>, texts: &[String]);

    /// Texts by key.
    fn texts_by_key(&mut self, field: Field<M, HashMap<String, String>>, texts: &BTreeMap<String, String>);

    /// Numbers by key, in the order of their keys.
    fn numbers_by_key<'k, C: Extend<(String, V)>, V: Number>(
        &mut self,
        field: Field<M, C>,
        numbers: impl Iterator<Item = (&'k str, V)>,
    );

    /// A message inside.
    fn message<N: Default>(&mut self, field: Field<M, Option<N>>, write: impl FnOnce(&mut Self::Inside<N>));

    /// Messages inside, one for each item.
    fn messages<N: Default, I: IntoIterator>(
        &mut self,
        field: Field<M, Vec<N>>,
        items: I,
        write: impl Fn(&mut Self::Inside<N>, I::Item),
    );
}

/// Builds a message.
pub fn message<M: Default>(write: impl FnOnce(&mut Message<M>)) -> M {
    let mut message = Message(M::default());
    write(&mut message);
    message.0
}

/// Encodes a message.
pub fn bytes<M: Default>(write: impl FnOnce(&mut Encoder<M>)) -> Vec<u8> {
    // Enough for most.
    let mut encoder = Encoder { out: Vec::with_capacity(256), message: PhantomData };
    write(&mut encoder);
    encoder.out
}

/// Encodes an operation of a transaction, which is one message inside [`v1::Op`].
pub fn operation<N: Default>(number: u32, write: impl FnOnce(&mut Encoder<N>)) -> Vec<u8> {
    bytes::<v1::Op>(|out| out.delimited(number, write))
}

/// A message that is being built.
pub struct Message<M>(M);

impl<M> FieldSink<M> for Message<M> {
    type Inside<N: Default> = Message<N>;

    fn number<V: Number>(&mut self, field: Field<M, V>, value: V) {
        *(field.of)(&mut self.0) = value;
    }

    fn optional<V: Number>(&mut self, field: Field<M, Option<V>>, value: Option<V>) {
        *(field.of)(&mut self.0) = value;
    }

    fn numbers(&mut self, field: Field<M, Vec<u32>>, values: &[u32]) {
        *(field.of)(&mut self.0) = values.to_vec();
    }

    fn text(&mut self, field: Field<M, String>, text: &str) {
        *(field.of)(&mut self.0) = text.to_owned();
    }

    fn texts(&mut self, field: Field<M, Vec<String>>, texts: &[String]) {
        *(field.of)(&mut self.0) = texts.to_vec();
    }

    fn texts_by_key(&mut self, field: Field<M, HashMap<String, String>>, texts: &BTreeMap<String, String>) {
        let pairs = texts.iter().map(|(key, text)| (key.clone(), text.clone()));
        (field.of)(&mut self.0).extend(pairs);
    }

    fn numbers_by_key<'k, C: Extend<(String, V)>, V: Number>(
        &mut self,
        field: Field<M, C>,
        numbers: impl Iterator<Item = (&'k str, V)>,
    ) {
        (field.of)(&mut self.0).extend(numbers.map(|(key, number)| (key.to_owned(), number)));
    }

    fn message<N: Default>(&mut self, field: Field<M, Option<N>>, write: impl FnOnce(&mut Self::Inside<N>)) {
        *(field.of)(&mut self.0) = Some(message(write));
    }

    fn messages<N: Default, I: IntoIterator>(
        &mut self,
        field: Field<M, Vec<N>>,
        items: I,
        write: impl Fn(&mut Self::Inside<N>, I::Item),
    ) {
        let messages = items.into_iter().map(|item| message(|out| write(out, item)));
        (field.of)(&mut self.0).extend(messages);
    }
}

/// The bytes of a message; fields with their default are left out, but for those that can be absent.
pub struct Encoder<M> {
    out: Vec<u8>,
    message: PhantomData<M>,
}

const VARINT: u32 = 0;
const LENGTH_DELIMITED: u32 = 2;

impl<M> Encoder<M> {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.out.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.out.push(value.to_le_bytes()[0]);
    }

    fn tag(&mut self, number: u32, wire_type: u32) {
        self.varint(u64::from(number << 3 | wire_type));
    }

    fn given(&mut self, number: u32, bits: u64) {
        self.tag(number, VARINT);
        self.varint(bits);
    }

    fn not_zero(&mut self, number: u32, bits: u64) {
        if bits != 0 {
            self.given(number, bits);
        }
    }

    fn any_text(&mut self, number: u32, text: &str) {
        self.tag(number, LENGTH_DELIMITED);
        self.varint(text.len() as u64);
        self.out.extend_from_slice(text.as_bytes());
    }

    fn not_empty(&mut self, number: u32, text: &str) {
        if !text.is_empty() {
            self.any_text(number, text);
        }
    }

    /// The length goes where it belongs once it is known: one byte is left for it, mostly enough.
    fn delimited<N>(&mut self, number: u32, write: impl FnOnce(&mut Encoder<N>)) {
        self.tag(number, LENGTH_DELIMITED);
        let start = self.out.len();
        self.out.push(0);
        let mut inside = Encoder { out: mem::take(&mut self.out), message: PhantomData };
        write(&mut inside);
        self.out = inside.out;
        let len = self.out.len() - start - 1;
        match u8::try_from(len) {
            Ok(len @ ..0x80) => self.out[start] = len,
            Ok(_) | Err(_) => {
                let end = self.out.len();
                self.varint(len as u64);
                let n_length = self.out.len() - end;
                let mut length = [0; 10];
                length[..n_length].copy_from_slice(&self.out[end..]);
                self.out.truncate(end + n_length - 1);
                self.out.copy_within(start + 1..end, start + n_length);
                self.out[start..start + n_length].copy_from_slice(&length[..n_length]);
            }
        }
    }
}

/// Fields of the entry of a map.
const KEY: u32 = 1;
const VALUE: u32 = 2;

impl<M> FieldSink<M> for Encoder<M> {
    type Inside<N: Default> = Encoder<N>;

    fn number<V: Number>(&mut self, field: Field<M, V>, value: V) {
        self.not_zero(field.number, value.bits());
    }

    fn optional<V: Number>(&mut self, field: Field<M, Option<V>>, value: Option<V>) {
        if let Some(value) = value {
            self.given(field.number, value.bits());
        }
    }

    fn numbers(&mut self, field: Field<M, Vec<u32>>, values: &[u32]) {
        if !values.is_empty() {
            let write = |out: &mut Encoder<()>| values.iter().for_each(|value| out.varint(u64::from(*value)));
            self.delimited(field.number, write);
        }
    }

    fn text(&mut self, field: Field<M, String>, text: &str) {
        self.not_empty(field.number, text);
    }

    fn texts(&mut self, field: Field<M, Vec<String>>, texts: &[String]) {
        for text in texts {
            self.any_text(field.number, text);
        }
    }

    fn texts_by_key(&mut self, field: Field<M, HashMap<String, String>>, texts: &BTreeMap<String, String>) {
        for (key, text) in texts {
            self.delimited(field.number, |out: &mut Encoder<()>| {
                out.not_empty(KEY, key);
                out.not_empty(VALUE, text);
            });
        }
    }

    fn numbers_by_key<'k, C: Extend<(String, V)>, V: Number>(
        &mut self,
        field: Field<M, C>,
        numbers: impl Iterator<Item = (&'k str, V)>,
    ) {
        for (key, number) in numbers {
            self.delimited(field.number, |out: &mut Encoder<()>| {
                out.not_empty(KEY, key);
                out.not_zero(VALUE, number.bits());
            });
        }
    }

    fn message<N: Default>(&mut self, field: Field<M, Option<N>>, write: impl FnOnce(&mut Self::Inside<N>)) {
        self.delimited(field.number, write);
    }

    fn messages<N: Default, I: IntoIterator>(
        &mut self,
        field: Field<M, Vec<N>>,
        items: I,
        write: impl Fn(&mut Self::Inside<N>, I::Item),
    ) {
        for item in items {
            self.delimited(field.number, |out| write(out, item));
        }
    }
}
