//! Values that no version writes, in any record: numbers that are none of their enum, and times before 1970. Readers of most
//! kinds pass over fields that they do not need, so that nobody else would notice them.
//!
//! The descriptors of the API say which fields these are, so that a new field is covered by itself. An encoded record is
//! walked through without being decoded; what holds no such field is passed over.

use std::{
    collections::{HashMap, HashSet},
    sync::OnceLock,
};

use bytes::{Buf as _, Bytes};
use prost::{
    Message as _,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet,
    field_descriptor_proto::{Label, Type},
};

use super::super::{BadField, Result};

/// Messages in messages that are looked into: as deep as they are decoded at all.
const DEPTH_MAX: usize = 100;
/// Times and durations that may be negative: YARN says "without end" so.
const MAY_BE_NEGATIVE: [&str; 2] = ["validity_interval_ms", "lifetime_ms"];

/// What is looked at in each message, by full name.
#[derive(Debug, Default)]
struct Schema {
    messages: HashMap<String, Vec<Field>>,
    enums: HashMap<String, HashSet<i32>>,
}

#[derive(Clone, Debug)]
struct Field {
    number: u32,
    name: String,
    is_repeated: bool,
    content: Content,
}

#[derive(Clone, Debug)]
enum Content {
    /// One of an enum, by name.
    Enum(String),
    /// Milliseconds.
    Time,
    /// Another message, by name.
    Message(String),
}

static SCHEMA: OnceLock<Schema> = OnceLock::new();

/// Checks all values in an operation with this field number and payload.
///
/// # Errors
/// The first wrong one, by its path from the operation's record on.
pub(super) fn check(op: u32, payload: &Bytes) -> Result<()> {
    let schema = SCHEMA.get_or_init(Schema::read);
    let ops = schema.messages.get(".godel.v1.Op").map_or(&[][..], Vec::as_slice);
    match ops.iter().find(|field| field.number == op).map(|field| &field.content) {
        Some(Content::Message(name)) => schema.walk(name, payload.clone(), DEPTH_MAX),
        Some(Content::Enum(_) | Content::Time) | None => Ok(()),
    }
}

impl Schema {
    fn read() -> Self {
        // The descriptors were made with the messages: they decode.
        let set = FileDescriptorSet::decode(godel_proto::FILE_DESCRIPTOR_SET).unwrap_or_default();
        let mut schema = Self::default();
        for file in &set.file {
            let scope = format!(".{}", file.package());
            schema.add(&scope, &file.message_type, &file.enum_type);
        }
        schema.forget_messages_without_values();
        schema
    }

    fn add(&mut self, scope: &str, messages: &[DescriptorProto], enums: &[EnumDescriptorProto]) {
        for one in enums {
            let numbers = one.value.iter().map(|value| value.number()).collect();
            self.enums.insert(format!("{scope}.{}", one.name()), numbers);
        }
        for message in messages {
            let name = format!("{scope}.{}", message.name());
            let fields = message.field.iter().filter_map(field).collect();
            self.add(&name, &message.nested_type, &message.enum_type);
            self.messages.insert(name, fields);
        }
    }

    /// Drops fields of messages in which there is nothing to look at, until all that are left lead to something.
    fn forget_messages_without_values(&mut self) {
        let mut useful: HashSet<String> = HashSet::new();
        loop {
            let n_before = useful.len();
            for (name, fields) in &self.messages {
                if fields.iter().any(|field| leads_somewhere(field, &useful)) {
                    useful.insert(name.clone());
                }
            }
            if useful.len() == n_before {
                break;
            }
        }
        for fields in self.messages.values_mut() {
            fields.retain(|field| leads_somewhere(field, &useful));
        }
    }

    fn walk(&self, message: &str, mut bytes: Bytes, depth: usize) -> Result<()> {
        let Some(fields) = self.messages.get(message).filter(|fields| !fields.is_empty() && depth > 0) else {
            return Ok(());
        };
        let mut n_seen: HashMap<u32, usize> = HashMap::new();
        // What does not decode is for the readers to say.
        while bytes.has_remaining()
            && let Ok((number, wire)) = decode_key(&mut bytes)
        {
            let Some(field) = fields.iter().find(|field| field.number == number) else {
                if skip_field(wire, number, &mut bytes, DecodeContext::default()).is_err() {
                    return Ok(());
                }
                continue;
            };
            let idx = field.is_repeated.then(|| {
                let seen = n_seen.entry(number).or_default();
                *seen += 1;
                *seen - 1
            });
            let path = || idx.map_or_else(|| field.name.clone(), |idx| format!("{}[{idx}]", field.name));
            match wire {
                WireType::Varint => {
                    let Ok(value) = decode_varint(&mut bytes) else { return Ok(()) };
                    self.judge(field, value).map_err(|why| BadField::new(path(), why))?;
                }
                WireType::LengthDelimited => {
                    let len = decode_varint(&mut bytes).ok().and_then(|len| usize::try_from(len).ok());
                    let Some(len) = len.filter(|len| *len <= bytes.len()) else { return Ok(()) };
                    let mut inner = bytes.split_to(len);
                    if let Content::Message(name) = &field.content {
                        self.walk(name, inner, depth - 1).map_err(|bad| bad.under(&path()))?;
                        continue;
                    }
                    let mut idx = 0;
                    while let Ok(value) = decode_varint(&mut inner) {
                        let bad = |why| BadField::new(format!("{}[{idx}]", field.name), why);
                        self.judge(field, value).map_err(bad)?;
                        idx += 1;
                    }
                }
                WireType::SixtyFourBit
                | WireType::ThirtyTwoBit
                | WireType::StartGroup
                | WireType::EndGroup => {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn judge(&self, field: &Field, value: u64) -> std::result::Result<(), String> {
        // As the generated code reads them.
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "two's complement")]
        let (number, time) = (value as i32, value as i64);
        match &field.content {
            Content::Enum(name) if self.enums.get(name).is_some_and(|known| !known.contains(&number)) => {
                Err(format!("{number} is not a value that this version knows"))
            }
            Content::Time if time < 0 => Err(format!("{time} is negative")),
            Content::Enum(_) | Content::Time | Content::Message(_) => Ok(()),
        }
    }
}

fn leads_somewhere(field: &Field, useful: &HashSet<String>) -> bool {
    match &field.content {
        Content::Enum(_) | Content::Time => true,
        Content::Message(name) => useful.contains(name),
    }
}

fn field(field: &FieldDescriptorProto) -> Option<Field> {
    // Columns of running units are read whole by their readers.
    let is_time = |name: &str| {
        name.ends_with("_ms") && !name.ends_with("_times_ms") && !MAY_BE_NEGATIVE.contains(&name)
    };
    let content = match field.r#type() {
        Type::Enum => Content::Enum(field.type_name().to_owned()),
        Type::Message => Content::Message(field.type_name().to_owned()),
        Type::Int64 if is_time(field.name()) => Content::Time,
        _ => return None,
    };
    let is_repeated = field.label() == Label::Repeated;
    Some(Field {
        number: u32::try_from(field.number()).ok()?,
        name: field.name().to_owned(),
        is_repeated,
        content,
    })
}

#[cfg(test)]
mod tests {
    use godel_proto::{raw, v1};

    use super::super::check_op;

    fn path(op: v1::op::Op) -> Option<String> {
        check_op(&raw::encode_op(op)).err().map(|bad| bad.path)
    }

    fn movement(change: impl FnOnce(&mut v1::Movement)) -> v1::op::Op {
        let one =
            v1::MovementMove { unit_id: 1, from_node_id: 1, to_node_id: 2, phase: 1, ..Default::default() };
        let moves = vec![one; 2];
        let mut movement = v1::Movement { name: "m".to_owned(), phase: 1, moves, ..v1::Movement::default() };
        change(&mut movement);
        v1::op::Op::PutMovement(movement)
    }

    fn application(change: impl FnOnce(&mut v1::YarnApplication)) -> v1::op::Op {
        let mut application = v1::YarnApplication {
            application: "application_1700000000000_0001".to_owned(),
            version: 1,
            lifetime_ms: Some(-1),
            validity_interval_ms: -1,
            ..v1::YarnApplication::default()
        };
        change(&mut application);
        v1::op::Op::PutYarnApplication(application)
    }

    #[test]
    fn values_that_are_none_of_their_enum_are_refused_wherever_they_are() {
        assert_eq!(path(movement(|_| {})), None);
        assert_eq!(path(movement(|it| it.ending = 99)).as_deref(), Some("put_movement.ending"));
        assert_eq!(path(movement(|it| it.phase = -3)).as_deref(), Some("put_movement.phase"));
        assert_eq!(
            path(movement(|it| it.moves[1].phase = 77)).as_deref(),
            Some("put_movement.moves[1].phase")
        );
        assert_eq!(path(application(|_| {})), None);
        assert_eq!(path(application(|it| it.end = 99)).as_deref(), Some("put_yarn_application.end"));
    }

    #[test]
    fn times_before_1970_are_refused() {
        assert_eq!(path(movement(|it| it.created_ms = -1)).as_deref(), Some("put_movement.created_ms"));
        assert_eq!(
            path(application(|it| it.start_ms = -1)).as_deref(),
            Some("put_yarn_application.start_ms")
        );
        let rate = |times_ms| v1::op::Op::PutMoveRate(v1::MoveRate { unit_id: 1, times_ms });
        assert_eq!(path(rate(vec![0, 7])), None);
        assert_eq!(path(rate(vec![-9, 5])).as_deref(), Some("put_move_rate.times_ms[0]"));
    }
}
