//! `godel context`: verbs and flags.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

/// `godel context`.
#[derive(Clone, Debug, Subcommand)]
pub enum ContextVerb {
    /// List contexts.
    List,
    /// Create a context, or change it. The first one becomes the current one.
    Set(ContextSettings),
    /// Get a token from the socket of state on this machine, or from a file, and keep it in a context together with the roots of the cluster.
    Login(LoginArgs),
    /// Add the contexts of a file, for example of the file of contexts of another machine. Whoever has the file has its owner's permissions
    /// until the tokens in it expire.
    Import {
        /// The file, which others must not be able to read; `-` is standard input.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Print the roots of a cluster (PEM), for tools such as `grpcurl -cacert`.
    Roots(ChosenContext),
    /// Print your token, renewed if it is old, for tools such as `grpcurl -H`. Whoever has it has your permissions until it expires.
    Token(ChosenContext),
    /// Make a context the current one, to whose cluster commands go.
    Use(NamedContext),
    /// Delete a context from the file. Its cluster stays as it is.
    Delete(NamedContext),
}

/// A context that is named.
#[derive(Clone, Debug, ClapArgs)]
pub struct NamedContext {
    /// Its name.
    #[arg(value_name = "NAME")]
    pub name: String,
}

/// A context, or the current one.
#[derive(Clone, Debug, ClapArgs)]
pub struct ChosenContext {
    /// Its name. Default: the current one.
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
}

/// `godel context set`.
#[derive(Clone, Debug, ClapArgs)]
pub struct ContextSettings {
    /// The context.
    #[command(flatten)]
    pub context: NamedContext,
    /// Address of state, such as `http://10.0.0.7:7700`, or of several states with commas between them. For TLS use `godel context login`.
    #[arg(long = "state", value_name = "URL")]
    pub state: String,
}

/// `godel login` and `godel context login`.
#[derive(Clone, Debug, ClapArgs)]
pub struct LoginArgs {
    /// Name of the context. Default: that of the cluster.
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// The socket of state, which only its owner may open. If it does not exist yet, the command waits for it for up to 10 s.
    #[arg(long, default_value = "godel-data/godel.sock", value_name = "FILE")]
    pub socket: PathBuf,
    /// Address of state to which commands go with the token, or the addresses of several states with commas between them.
    #[arg(long = "state", default_value = "https://127.0.0.1:7700", value_name = "URL")]
    pub state: String,
    /// Use the token in this file, which others must not be able to read, instead of the socket; `-` is standard input. `godel token create --file`
    /// writes such a file.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// The roots of the cluster (PEM), if the file has only a token: `godel context roots` prints them.
    #[arg(long, value_name = "FILE", requires = "token_file")]
    pub roots: Option<PathBuf>,
}
