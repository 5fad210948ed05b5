//! Compiles `godel/v1/*.proto` with protox: nobody has to install protoc.

use std::{collections::BTreeSet, env, error::Error, fmt::Write as _, fs, path::PathBuf};

use prost::Message as _;
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorSet,
    field_descriptor_proto::{Label, Type},
};

const FILES: [&str; 18] = [
    "godel/v1/common.proto",
    "godel/v1/log.proto",
    "godel/v1/node.proto",
    "godel/v1/unit.proto",
    "godel/v1/queue.proto",
    "godel/v1/budget.proto",
    "godel/v1/reservation.proto",
    "godel/v1/yarn_application.proto",
    "godel/v1/movement.proto",
    "godel/v1/identity.proto",
    "godel/v1/change.proto",
    "godel/v1/state.proto",
    "godel/v1/member.proto",
    "godel/v1/dispatch.proto",
    "godel/v1/bind.proto",
    "godel/v1/scheduler.proto",
    "godel/v1/yarn.proto",
    "godel/v1/reschedule.proto",
];

const PACKAGE: &str = "godel.v1";
/// The message whose map is in order.
const ORDERED: &str = "Resources";
/// Messages with secrets, which say in `src/secrets.rs` what logs may show of them.
const SECRET: [&str; 7] = [
    "SealedSigner",
    "JoinToken",
    "JoinRequest",
    "CreateJoinTokenResponse",
    "IssueTokenResponse",
    "CreateTokenResponse",
    "YarnTokenKey",
];
/// Messages that are written field by field, with all messages in them: see src/fields.rs.
const WRITTEN: [&str; 2] = ["UnitRecord", "TaskGroupRecord"];

#[expect(clippy::disallowed_methods, reason = "cargo tells build scripts where to write by the environment")]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=godel");
    let descriptors = protox::compile(FILES, ["."])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("godel_v1.bin"), descriptors.encode_to_vec())?;
    fs::write(out.join("fields.rs"), fields(&descriptors)?)?;
    tonic_prost_build::configure()
        // Says whose fault a message is that cannot be decoded.
        .codec_path("crate::codec::GodelCodec")
        // Transactions and commits keep their operations as encoded bytes, assignments their units: see src/raw.rs.
        .extern_path(".godel.v1.TxnRequest", "crate::raw::TxnRequest")
        .extern_path(".godel.v1.Commit", "crate::raw::Commit")
        .extern_path(".godel.v1.UnitAssignment", "crate::raw::UnitAssignment")
        // In order already where they are read: see `godel_base::resources`.
        .btree_map(format!(".{PACKAGE}.{ORDERED}"))
        .skip_debug(SECRET.map(|name| format!(".{PACKAGE}.{name}")))
        .compile_fds(descriptors)?;
    Ok(())
}

/// Constants for the fields of the messages that are written field by field, and for the operations of transactions.
fn fields(descriptors: &FileDescriptorSet) -> Result<String, Box<dyn Error>> {
    let find = |name: &str| {
        let mut messages = descriptors.file.iter().flat_map(|file| &file.message_type);
        messages.find(|message| message.name() == name).ok_or_else(|| format!("no message {name}"))
    };
    let mut out = String::new();
    let mut next: Vec<String> = WRITTEN.map(str::to_owned).into();
    let mut known: BTreeSet<String> = next.iter().cloned().collect();
    while let Some(name) = next.pop() {
        let message = find(&name)?;
        module(&mut out, &name, message, |field| {
            let kind = rust_type(message, field)?;
            if field.r#type() == Type::Message && map_entry(message, field).is_none() {
                let inside = short(field.type_name()).to_owned();
                next.extend(known.insert(inside.clone()).then_some(inside));
            }
            let (number, field) = (field.number(), field.name());
            Ok((
                format!("Field<v1::{name}, {kind}>"),
                format!("Field {{ number: {number}, of: |message| &mut message.{field} }}"),
            ))
        })?;
    }
    let numbers = |field: &FieldDescriptorProto| Ok(("u32".to_owned(), field.number().to_string()));
    module(&mut out, "Op", find("Op")?, numbers)?;
    Ok(out)
}

/// A module of constants, with the type and the value of each.
fn module(
    out: &mut String,
    name: &str,
    message: &DescriptorProto,
    mut constant: impl FnMut(&FieldDescriptorProto) -> Result<(String, String), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let capital = |(at, char): (usize, char)| {
        let gap = (at > 0 && char.is_uppercase()).then_some('_');
        gap.into_iter().chain(char.to_lowercase())
    };
    let module: String = name.chars().enumerate().flat_map(capital).collect();
    writeln!(out, "/// Fields of [`v1::{name}`].\npub mod {module} {{")?;
    writeln!(out, "    #[allow(unused_imports, reason = \"generated\")]\n    use super::*;")?;
    for field in &message.field {
        let (kind, value) = constant(field)?;
        let name = field.name();
        writeln!(
            out,
            "    /// The field `{name}`.\n    pub const {}: {kind} = {value};",
            name.to_uppercase()
        )?;
    }
    writeln!(out, "}}")?;
    Ok(())
}

/// The type that a field has in Rust.
fn rust_type(message: &DescriptorProto, field: &FieldDescriptorProto) -> Result<String, Box<dyn Error>> {
    if let Some(entry) = map_entry(message, field) {
        let [key, value] = entry.field.as_slice() else { return Err("a map has keys and values".into()) };
        let map = if message.name() == ORDERED { "BTreeMap" } else { "HashMap" };
        return Ok(format!("{map}<{}, {}>", rust_type(entry, key)?, rust_type(entry, value)?));
    }
    let kind = match field.r#type() {
        Type::Uint32 => "u32".to_owned(),
        Type::Uint64 => "u64".to_owned(),
        Type::Int64 => "i64".to_owned(),
        Type::Int32 | Type::Enum => "i32".to_owned(),
        Type::Bool => "bool".to_owned(),
        Type::String => "String".to_owned(),
        Type::Message => format!("v1::{}", short(field.type_name())),
        other => return Err(format!("{other:?} is not written field by field: {}", field.name()).into()),
    };
    Ok(match field.label() {
        Label::Repeated => format!("Vec<{kind}>"),
        _ if field.proto3_optional() || field.r#type() == Type::Message => format!("Option<{kind}>"),
        _ => kind,
    })
}

/// What a map is of, if a field is one.
fn map_entry<'m>(message: &'m DescriptorProto, field: &FieldDescriptorProto) -> Option<&'m DescriptorProto> {
    let entry = message.nested_type.iter().find(|nested| short(field.type_name()) == nested.name())?;
    entry.options.as_ref().is_some_and(|options| options.map_entry()).then_some(entry)
}

fn short(type_name: &str) -> &str {
    type_name.rsplit('.').next().unwrap_or(type_name)
}
