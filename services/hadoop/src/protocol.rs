//! Protocols as tables of methods.

use std::{borrow::Cow, collections::BTreeMap, future::Future, net::SocketAddr, pin::Pin, sync::Arc};

use bytes::Bytes;
use prost::Message;

use crate::{Exception, exception};

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Who the caller is, as far as its connection has shown.
    pub identity: Identity,
    /// Where the caller is.
    pub address: SocketAddr,
    /// The method that it calls; empty before it calls one.
    pub method: &'static str,
}

/// Who a connection is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Who the client says that it is: nothing proves it.
    User {
        /// On whose behalf it calls.
        effective: String,
        /// Who calls on behalf of `effective` (`doAs`), where that is another user.
        real: Option<String>,
    },
    /// The identifier of a token; the client has shown that it has the password.
    Token(Bytes),
}

impl Identity {
    /// Reads the identifier of the caller's token.
    ///
    /// # Errors
    /// The caller has no token, or one that cannot be read.
    pub fn token<I: crate::token::Identifier>(&self) -> Result<I, Exception> {
        let Self::Token(identifier) = self else {
            let message = format!("this call needs a token of kind {}, and its caller has none", I::KIND);
            return Err(Exception::new(exception::ACCESS_CONTROL, message));
        };
        I::decode(identifier.clone()).map_err(|_| {
            Exception::new(exception::INVALID_TOKEN, format!("the token of kind {} cannot be read", I::KIND))
        })
    }
}

/// What a method answers: the encoded response, or an exception.
pub type CallAnswer = Result<Bytes, Exception>;
pub(crate) type RunningCall = Pin<Box<dyn Future<Output = CallAnswer> + Send>>;
pub(crate) type Method = Arc<dyn Fn(Caller, Bytes) -> RunningCall + Send + Sync>;

/// A protocol: its methods by name.
#[derive(Clone)]
pub struct Protocol {
    pub(crate) name: &'static str,
    pub(crate) version: u64,
    methods: BTreeMap<&'static str, Method>,
}

impl std::fmt::Debug for Protocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, version, methods } = self;
        let methods: Vec<_> = methods.keys().collect();
        f.debug_struct("Protocol")
            .field("name", name)
            .field("version", version)
            .field("methods", &methods)
            .finish()
    }
}

impl Protocol {
    /// A protocol without methods. `name` is that of the Java class on the wire, as `org.apache.hadoop.yarn.api.ApplicationClientProtocolPB`.
    pub fn new(name: &'static str, version: u64) -> Self {
        Self { name, version, methods: BTreeMap::new() }
    }

    /// Adds a method that takes and answers messages.
    #[must_use]
    pub fn method<Q, A, F, R>(self, name: &'static str, method: F) -> Self
    where
        Q: Message + Default,
        A: Message,
        F: Fn(Caller, Q) -> R + Send + Sync + 'static,
        R: Future<Output = Result<A, Exception>> + Send + 'static,
    {
        self.raw(name, move |caller, body| {
            let running = Q::decode(body).map(|request| method(caller, request));
            async move {
                let running = running.map_err(|error| {
                    Exception::new(
                        exception::BAD_REQUEST,
                        format!("the request of {name} cannot be read: {error}"),
                    )
                })?;
                Ok(running.await?.encode_to_vec().into())
            }
        })
    }

    /// Adds a method that takes and answers encoded messages.
    #[must_use]
    pub fn raw<F, R>(mut self, name: &'static str, method: F) -> Self
    where
        F: Fn(Caller, Bytes) -> R + Send + Sync + 'static,
        R: Future<Output = CallAnswer> + Send + 'static,
    {
        let call = move |caller: Caller, body| {
            Box::pin(method(Caller { method: name, ..caller }, body)) as RunningCall
        };
        self.methods.insert(name, Arc::new(call));
        self
    }

    /// Adds a method that always answers an exception.
    #[must_use]
    pub fn refuse(
        self,
        name: &'static str,
        class: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) -> Self {
        let refusal = Exception::new(class, message);
        self.raw(name, move |_, _| std::future::ready(Err(refusal.clone())))
    }

    /// The name of its Java class.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Names of its methods.
    pub fn methods(&self) -> impl Iterator<Item = &'static str> {
        self.methods.keys().copied()
    }

    /// Has `guard` judge each call by the name of its method: it says as whom the call goes on, or why it does not.
    #[must_use]
    pub fn guarded<G>(mut self, guard: G) -> Self
    where
        G: Fn(&'static str, Caller) -> Result<Caller, Exception> + Clone + Send + Sync + 'static,
    {
        for (name, method) in &mut self.methods {
            let (name, guard, inner) = (*name, guard.clone(), Arc::clone(method));
            *method = Arc::new(move |caller, body| match guard(name, caller) {
                Ok(caller) => inner(caller, body),
                Err(refusal) => Box::pin(std::future::ready(Err(refusal))),
            });
        }
        self
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Method> {
        self.methods.get(name)
    }
}
