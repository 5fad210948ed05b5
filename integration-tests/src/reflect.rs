//! A client in the manner of grpcurl: it knows an address and nothing else. It asks the server's reflection
//! service for descriptors, builds messages from JSON and calls any method.

use std::str::FromStr as _;

use anyhow::{Context as _, Result, bail};
use bytes::{Buf as _, BufMut as _};
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor, SerializeOptions};
use tonic::{
    Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder, Streaming},
    codegen::http::uri::PathAndQuery,
    metadata::{AsciiMetadataKey, AsciiMetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::Channel,
};
use tonic_reflection::pb::{v1, v1alpha};

/// Version of the reflection protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// `grpc.reflection.v1`.
    V1,
    /// `grpc.reflection.v1alpha`.
    V1Alpha,
}

/// A server known by reflection alone.
#[derive(Clone, Debug)]
pub struct ReflectionClient {
    channel: InterceptedService<Channel, ShownHeaders>,
    protocol: Protocol,
    pool: DescriptorPool,
}

/// A header of a call.
#[derive(Clone, Debug)]
pub struct Header {
    /// In lower case.
    pub name: AsciiMetadataKey,
    /// As it is sent.
    pub value: AsciiMetadataValue,
}

/// Headers of every call.
#[derive(Clone, Debug)]
struct ShownHeaders(Vec<Header>);

impl Interceptor for ShownHeaders {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, Status> {
        for Header { name, value } in &self.0 {
            request.metadata_mut().insert(name.clone(), value.clone());
        }
        Ok(request)
    }
}

/// What can be asked of a reflection service here.
#[derive(Clone, Debug)]
enum Question {
    ListServices,
    FileContainingSymbol(String),
    FileByName(String),
}

#[derive(Debug)]
enum Answer {
    Services(Vec<String>),
    Files(Vec<Vec<u8>>),
}

impl ReflectionClient {
    /// Does not connect yet.
    pub fn new(channel: Channel, protocol: Protocol) -> Self {
        Self::with_headers(channel, protocol, Vec::new())
    }

    /// The same with headers of every call.
    pub fn with_headers(channel: Channel, protocol: Protocol, headers: Vec<Header>) -> Self {
        let channel = InterceptedService::new(channel, ShownHeaders(headers));
        Self { channel, protocol, pool: DescriptorPool::new() }
    }

    /// Full names of all services of the server.
    pub async fn list_services(&self) -> Result<Vec<String>> {
        match self.ask(Question::ListServices).await? {
            Answer::Services(names) => Ok(names),
            other @ Answer::Files(_) => bail!("asked for services, got {other:?}"),
        }
    }

    /// Fetches the file that defines `service`, and all that it imports.
    pub async fn load(&mut self, service: &str) -> Result<()> {
        let mut files = Vec::new();
        let mut todo = vec![Question::FileContainingSymbol(service.to_owned())];
        while let Some(question) = todo.pop() {
            let Answer::Files(encoded) = self.ask(question).await? else {
                bail!("asked for files, got services")
            };
            for bytes in encoded {
                let file = prost_types::FileDescriptorProto::decode(bytes.as_slice())?;
                if files.iter().any(|known: &prost_types::FileDescriptorProto| known.name == file.name) {
                    continue;
                }
                todo.extend(file.dependency.iter().cloned().map(Question::FileByName));
                files.push(file);
            }
        }
        self.pool.add_file_descriptor_protos(files)?;
        Ok(())
    }

    /// Calls a unary method with a JSON request.
    pub async fn call(&self, service: &str, method: &str, json: &str) -> Result<serde_json::Value> {
        let method = self.method(service, method)?;
        let request = message_from_json(&method.input(), json)?;
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await?;
        let codec = DynamicCodec(method.output());
        let answer = grpc.unary(tonic::Request::new(request), path(&method)?, codec).await?;
        to_json(answer.get_ref())
    }

    /// Calls a method that answers with a stream.
    pub async fn stream(&self, service: &str, method: &str, json: &str) -> Result<Streaming<DynamicMessage>> {
        let method = self.method(service, method)?;
        let request = message_from_json(&method.input(), json)?;
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await?;
        let codec = DynamicCodec(method.output());
        Ok(grpc.server_streaming(tonic::Request::new(request), path(&method)?, codec).await?.into_inner())
    }

    /// Whether a method of a loaded service answers with a stream.
    pub fn is_streaming(&self, service: &str, method: &str) -> Result<bool> {
        Ok(self.method(service, method)?.is_server_streaming())
    }

    /// Loads the file that defines a method, and returns its signature.
    pub async fn describe(&mut self, symbol: &str) -> Result<String> {
        self.load(symbol).await?;
        let (service, method) = symbol.rsplit_once('.').context("a method is SERVICE.METHOD")?;
        let method = self.method(service, method)?;
        let (input, output) = (method.input(), method.output());
        Ok(format!("rpc {} ( .{} ) returns ( .{} );", method.name(), input.full_name(), output.full_name()))
    }

    fn method(&self, service: &str, method: &str) -> Result<MethodDescriptor> {
        let found =
            self.pool.get_service_by_name(service).with_context(|| format!("no service {service}"))?;
        let mut methods = found.methods();
        methods
            .find(|candidate| candidate.name() == method)
            .with_context(|| format!("no method {service}/{method}"))
    }

    async fn ask(&self, question: Question) -> Result<Answer> {
        match self.protocol {
            Protocol::V1 => ask_v1(self.channel.clone(), question).await,
            Protocol::V1Alpha => ask_v1alpha(self.channel.clone(), question).await,
        }
    }
}

/// A message as JSON, with the field names of the `.proto` file.
pub fn to_json(message: &DynamicMessage) -> Result<serde_json::Value> {
    let options = SerializeOptions::new().use_proto_field_name(true).stringify_64_bit_integers(false);
    Ok(message.serialize_with_options(serde_json::value::Serializer, &options)?)
}

fn message_from_json(descriptor: &MessageDescriptor, json: &str) -> Result<DynamicMessage> {
    let mut deserializer = serde_json::Deserializer::from_str(json);
    let message = DynamicMessage::deserialize(descriptor.clone(), &mut deserializer)?;
    deserializer.end()?;
    Ok(message)
}

fn path(method: &MethodDescriptor) -> Result<PathAndQuery> {
    let path = format!("/{}/{}", method.parent_service().full_name(), method.name());
    PathAndQuery::from_str(&path).with_context(|| format!("bad path {path}"))
}

/// Both versions of the protocol have the same messages in different packages.
macro_rules! asks {
    ($name:ident, $pb:ident) => {
        async fn $name(
            channel: InterceptedService<Channel, ShownHeaders>,
            question: Question,
        ) -> Result<Answer> {
            use $pb::{server_reflection_request as ask, server_reflection_response as answer};
            let message = match question {
                Question::ListServices => ask::MessageRequest::ListServices(String::new()),
                Question::FileContainingSymbol(symbol) => ask::MessageRequest::FileContainingSymbol(symbol),
                Question::FileByName(name) => ask::MessageRequest::FileByFilename(name),
            };
            let request =
                $pb::ServerReflectionRequest { host: String::new(), message_request: Some(message) };
            let mut client = $pb::server_reflection_client::ServerReflectionClient::new(channel);
            let mut answers = client.server_reflection_info(tokio_stream::once(request)).await?.into_inner();
            let response = answers.message().await?.context("reflection gave no answer")?;
            match response.message_response.context("reflection gave an empty answer")? {
                answer::MessageResponse::ListServicesResponse(list) => {
                    Ok(Answer::Services(list.service.into_iter().map(|service| service.name).collect()))
                }
                answer::MessageResponse::FileDescriptorResponse(files) => {
                    Ok(Answer::Files(files.file_descriptor_proto))
                }
                other => bail!("reflection answered {other:?}"),
            }
        }
    };
}

asks!(ask_v1, v1);
asks!(ask_v1alpha, v1alpha);

/// Encodes any dynamic message; decodes into messages of one descriptor.
#[derive(Clone, Debug)]
struct DynamicCodec(MessageDescriptor);

impl Codec for DynamicCodec {
    type Encode = DynamicMessage;
    type Decode = DynamicMessage;
    type Encoder = DynamicEncoder;
    type Decoder = DynamicCodec;

    fn encoder(&mut self) -> Self::Encoder {
        DynamicEncoder
    }

    fn decoder(&mut self) -> Self::Decoder {
        self.clone()
    }
}

#[derive(Debug)]
struct DynamicEncoder;

impl Encoder for DynamicEncoder {
    type Item = DynamicMessage;
    type Error = Status;

    fn encode(&mut self, item: Self::Item, dst: &mut EncodeBuf<'_>) -> Result<(), Status> {
        dst.put_slice(&item.encode_to_vec());
        Ok(())
    }
}

impl Decoder for DynamicCodec {
    type Item = DynamicMessage;
    type Error = Status;

    fn decode(&mut self, src: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        let bytes = src.copy_to_bytes(src.remaining());
        DynamicMessage::decode(self.0.clone(), bytes)
            .map(Some)
            .map_err(|error| Status::internal(format!("undecodable answer: {error}")))
    }
}
