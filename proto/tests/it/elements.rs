//! The parts of the API, one by one, with their comments.

use std::collections::HashMap;

use prost::Message as _;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    MethodDescriptorProto,
    field_descriptor_proto::{Label, Type},
};

/// A part of the API.
pub(crate) struct Element {
    /// As `Node.spec`, without the package.
    pub(crate) name: String,
    /// In front of it in its file.
    pub(crate) comment: String,
    pub(crate) what: What,
}

/// What a part is.
pub(crate) enum What {
    Message {
        reserved: Vec<String>,
    },
    /// Of a real one: proto3 makes one up for each optional field.
    Oneof,
    Field(Box<Field>),
    Enum,
    Value {
        number: i32,
    },
    Service,
    Rpc(Box<MethodDescriptorProto>),
}

/// A field, with its type in words.
pub(crate) struct Field {
    pub(crate) number: i32,
    /// `optional`, `repeated`, or nothing.
    pub(crate) label: &'static str,
    /// As in a file: `uint32`, `Node`, `map<string, int64>`.
    pub(crate) shown: String,
    pub(crate) kind: Type,
    /// The oneof that it is in.
    pub(crate) oneof: Option<String>,
}

/// The files of the package.
pub(crate) fn files() -> Vec<FileDescriptorProto> {
    let set = FileDescriptorSet::decode(godel_proto::FILE_DESCRIPTOR_SET).unwrap();
    set.file.into_iter().filter(|file| file.package() == "godel.v1").collect()
}

/// All parts of all files, in their order.
pub(crate) fn elements() -> Vec<Element> {
    let mut all = Vec::new();
    for file in files() {
        let comments = comments(&file);
        let mut walk = Walk { comments: &comments, all: &mut all };
        for (idx, message) in (0..).zip(&file.message_type) {
            walk.message("", &[4, idx], message);
        }
        for (idx, of) in (0..).zip(&file.enum_type) {
            walk.enumeration("", &[5, idx], of);
        }
        for (idx, service) in (0..).zip(&file.service) {
            walk.add(service.name().to_owned(), &[6, idx], What::Service);
            for (at, rpc) in (0..).zip(&service.method) {
                let name = format!("{}.{}", service.name(), rpc.name());
                walk.add(name, &[6, idx, 2, at], What::Rpc(Box::new(rpc.clone())));
            }
        }
    }
    all
}

/// A name without the package.
pub(crate) fn short(name: &str) -> &str {
    name.trim_start_matches(".godel.v1.")
}

fn comments(file: &FileDescriptorProto) -> HashMap<Vec<i32>, String> {
    let locations = file.source_code_info.iter().flat_map(|info| &info.location);
    locations
        .map(|at| (at.path.clone(), format!("{}{}", at.leading_comments(), at.trailing_comments())))
        .collect()
}

struct Walk<'a> {
    comments: &'a HashMap<Vec<i32>, String>,
    all: &'a mut Vec<Element>,
}

impl Walk<'_> {
    fn add(&mut self, name: String, path: &[i32], what: What) {
        let comment = self.comments.get(path).map_or("", |comment| comment.trim()).to_owned();
        self.all.push(Element { name, comment, what });
    }

    fn message(&mut self, outer: &str, path: &[i32], message: &DescriptorProto) {
        let name = format!("{outer}{}", message.name());
        let under = |kind: i32, idx: i32| [path, &[kind, idx]].concat();
        let ranges = message.reserved_range.iter().map(|range| match (range.start(), range.end() - 1) {
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first} to {last}"),
        });
        let reserved = ranges.chain(message.reserved_name.iter().cloned()).collect();
        self.add(name.clone(), path, What::Message { reserved });
        for (idx, field) in (0..).zip(&message.field) {
            let shown = shown(message, field);
            let real = field.oneof_index.filter(|_| !field.proto3_optional());
            let oneof = real.and_then(|idx| message.oneof_decl.get(usize::try_from(idx).ok()?));
            let label = match (field.proto3_optional(), field.label()) {
                (true, _) => "optional ",
                (false, Label::Repeated) if !shown.starts_with("map<") => "repeated ",
                (false, _) => "",
            };
            let what = Field {
                number: field.number(),
                label,
                shown,
                kind: field.r#type(),
                oneof: oneof.map(|oneof| oneof.name().to_owned()),
            };
            self.add(format!("{name}.{}", field.name()), &under(2, idx), What::Field(Box::new(what)));
        }
        for (idx, oneof) in (0..).zip(&message.oneof_decl) {
            let is_in = |field: &&FieldDescriptorProto| field.oneof_index == Some(idx);
            if !message.field.iter().filter(is_in).all(FieldDescriptorProto::proto3_optional) {
                self.add(format!("{name}.{}", oneof.name()), &under(8, idx), What::Oneof);
            }
        }
        for (idx, nested) in (0..).zip(&message.nested_type) {
            if !nested.options.as_ref().is_some_and(prost_types::MessageOptions::map_entry) {
                self.message(&format!("{name}."), &under(3, idx), nested);
            }
        }
        for (idx, of) in (0..).zip(&message.enum_type) {
            self.enumeration(&format!("{name}."), &under(4, idx), of);
        }
    }

    fn enumeration(&mut self, outer: &str, path: &[i32], of: &EnumDescriptorProto) {
        let name = format!("{outer}{}", of.name());
        self.add(name.clone(), path, What::Enum);
        for (idx, value) in (0..).zip(&of.value) {
            let path = [path, &[2, idx]].concat();
            self.add(format!("{name}.{}", value.name()), &path, What::Value { number: value.number() });
        }
    }
}

/// The type of a field as its file says it.
fn shown(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let entry = message.nested_type.iter().find(|nested| {
        field.type_name().ends_with(&format!(".{}.{}", message.name(), nested.name()))
            && nested.options.as_ref().is_some_and(prost_types::MessageOptions::map_entry)
    });
    if let Some(entry) = entry {
        return format!("map<{}, {}>", shown(entry, &entry.field[0]), shown(entry, &entry.field[1]));
    }
    match field.r#type() {
        Type::Message | Type::Enum | Type::Group => short(field.type_name()).to_owned(),
        scalar => scalar.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
    }
}
