//! An engine that only pretends: what it is asked for, over a socket as real, and containers that are nothing but a state.
//!
//! The first word of a container's entrypoint says what it does: `exit N` ends at once, `oom` ends for want of memory, `sleep` ends
//! with a signal, `deaf` ends by force only, and without one it ends well. Each writes `hello` to both of its outputs first.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
    sync::watch,
};

/// What becomes of a pull.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pull {
    #[default]
    Refused,
    Delivered,
    Hangs,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Pretended {
    pub(super) body: Value,
    pub(super) state: Value,
}

#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) images: BTreeSet<String>,
    pub(super) pull: Pull,
    /// Every start is refused with these words.
    pub(super) start_error: Option<&'static str>,
    pub(super) containers: BTreeMap<String, Pretended>,
    /// Methods and paths, without version and query.
    pub(super) asked: Vec<String>,
    /// Signals by number of the request.
    pub(super) signals: Vec<String>,
}

pub(super) struct Engine {
    dir: TempDir,
    shared: Arc<Shared>,
}

struct Shared {
    world: Mutex<World>,
    /// Something has changed.
    changed: watch::Sender<u64>,
    /// Connections of an earlier generation are cut.
    generation: watch::Sender<u64>,
}

const STARTED: &str = "2026-11-27T08:48:35.095479094Z";
const ENDED: &str = "2026-11-27T08:48:36.132379089Z";
/// [`STARTED`] in Unix milliseconds.
pub(super) const STARTED_MS: i64 = 1_795_769_315_095;

impl Engine {
    pub(super) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("engine.sock")).unwrap();
        let world = World { images: ["web:1".to_owned()].into(), ..World::default() };
        let (changed, generation) = (watch::channel(0).0, watch::channel(0).0);
        let shared = Arc::new(Shared { world: Mutex::new(world), changed, generation });
        let of_task = Arc::clone(&shared);
        godel_kit::task::spawn("test.engine", async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = Arc::clone(&of_task);
                godel_kit::task::spawn("test.connection", async move {
                    let mut cut = shared.generation.subscribe();
                    tokio::select! {
                        _ = serve(&shared, stream) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Self { dir, shared }
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.path().join("engine.sock")
    }

    pub(super) fn with<T>(&self, change: impl FnOnce(&mut World) -> T) -> T {
        let result = change(&mut self.shared.world.lock().unwrap());
        self.shared.changed.send_modify(|n| *n += 1);
        result
    }

    /// As when the engine is started again: everybody has to connect once more.
    pub(super) fn cut_connections(&self) {
        self.shared.generation.send_modify(|n| *n += 1);
    }

    pub(super) fn end(&self, name: &str, exit_code: i32) {
        self.with(|world| end(world.containers.get_mut(name).unwrap(), exit_code, false));
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.with(|world| world.containers.keys().cloned().collect())
    }

    pub(super) fn n_asked(&self, what: &str) -> usize {
        self.with(|world| world.asked.iter().filter(|asked| asked.contains(what)).count())
    }
}

fn end(one: &mut Pretended, exit_code: i32, out_of_memory: bool) {
    one.state = json!({
        "Running": false, "Pid": 0, "ExitCode": exit_code, "OOMKilled": out_of_memory,
        "StartedAt": STARTED, "FinishedAt": ENDED,
    });
}

fn is_running(one: &Pretended) -> bool {
    one.state["Running"] == json!(true)
}

struct Request {
    line: String,
    method: String,
    path: String,
    query: String,
    body: Value,
}

async fn read(stream: &mut UnixStream) -> Option<Request> {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let text = String::from_utf8(bytes[..head].to_vec()).ok()?;
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("content-length").then(|| value.parse::<usize>().ok())?
    });
    while bytes.len() < head + 4 + length.unwrap_or(0) {
        stream.read_buf(&mut bytes).await.ok()?;
    }
    let mut words = text.lines().next()?.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let path = path.strip_prefix("/v1.").and_then(|rest| rest.split_once('/')).map_or(path, |(_, rest)| rest);
    let path = path.trim_start_matches('/').to_owned();
    let body = serde_json::from_slice(&bytes[head + 4..]).unwrap_or(Value::Null);
    Some(Request { line: format!("{method} {path}"), method, path, query: decoded(query), body })
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            b'+' => b' ',
            other => other,
        });
    }
    String::from_utf8(bytes).unwrap()
}

async fn answer(stream: &mut UnixStream, status: u16, body: &Value) -> Option<()> {
    let body = body.to_string();
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} Said\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    let text = if status == 204 {
        "HTTP/1.1 204 Done\r\nConnection: close\r\n\r\n".to_owned()
    } else {
        head + &body
    };
    stream.write_all(text.as_bytes()).await.ok()
}

async fn serve(shared: &Shared, mut stream: UnixStream) -> Option<()> {
    let request = read(&mut stream).await?;
    shared.world.lock().unwrap().asked.push(request.line.clone());
    let parts: Vec<&str> = request.path.split('/').collect();
    let (status, body) = match (request.method.as_str(), parts.as_slice()) {
        (_, ["version"]) => (200, json!({"ApiVersion": "1.41"})),
        ("POST", ["images", "create"]) => return pull(shared, &request, stream).await,
        ("GET", ["images", .., "json"]) => {
            let image = request.path.trim_start_matches("images/").trim_end_matches("/json");
            let has = shared.world.lock().unwrap().images.contains(image);
            if has { (200, json!({"Id": "sha256:1"})) } else { (404, json!({"message": "No such image"})) }
        }
        ("GET", ["containers", "json"]) => (200, list(&shared.world.lock().unwrap(), &request.query)),
        ("POST", ["containers", "create"]) => create(&mut shared.world.lock().unwrap(), &request),
        ("POST", ["containers", name, "attach"]) => return attach(shared, name, stream).await,
        ("POST", ["containers", name, "wait"]) => {
            until(shared, name, |one| !is_running(one)).await;
            (200, json!({"StatusCode": 0}))
        }
        (method, ["containers", name, rest @ ..]) => {
            of_container(&mut shared.world.lock().unwrap(), (method, name, rest), &request.query)
        }
        _ => (400, json!({"message": "nobody asks for that"})),
    };
    shared.changed.send_modify(|n| *n += 1);
    answer(&mut stream, status, &body).await
}

async fn until(shared: &Shared, name: &str, is_so: impl Fn(&Pretended) -> bool) {
    let mut changed = shared.changed.subscribe();
    while shared.world.lock().unwrap().containers.get(name).is_some_and(|one| !is_so(one)) {
        let _goes_on = changed.changed().await;
    }
}

async fn pull(shared: &Shared, request: &Request, mut stream: UnixStream) -> Option<()> {
    let how = shared.world.lock().unwrap().pull;
    match how {
        Pull::Refused => answer(&mut stream, 500, &json!({"message": "no such host"})).await,
        Pull::Hangs => std::future::pending().await,
        Pull::Delivered => {
            let image = request.query.split('&').find_map(|part| part.strip_prefix("fromImage=")).unwrap();
            shared.world.lock().unwrap().images.insert(image.to_owned());
            answer(&mut stream, 200, &json!({"status": "Downloaded"})).await
        }
    }
}

fn list(world: &World, query: &str) -> Value {
    let filters = query.split('&').find_map(|part| part.strip_prefix("filters=")).unwrap();
    let wanted: BTreeMap<String, Vec<String>> = serde_json::from_str(filters).unwrap();
    let has = |one: &Pretended, label: &String| {
        let (key, value) = label.split_once('=').unwrap();
        one.body["Labels"][key] == json!(value)
    };
    let fits = |one: &Pretended| wanted["label"].iter().all(|label| has(one, label));
    let found = world.containers.iter().filter(|(_, one)| fits(one));
    let state = |one: &Pretended| if is_running(one) { "running" } else { "exited" };
    let shown = |(name, one): (&String, &Pretended)| json!({"Names": [format!("/{name}")], "Labels": one.body["Labels"], "State": state(one)});
    found.map(shown).collect()
}

fn create(world: &mut World, request: &Request) -> (u16, Value) {
    let name = request.query.split('&').find_map(|part| part.strip_prefix("name=")).unwrap();
    if world.containers.contains_key(name) {
        return (409, json!({"message": "the name is in use"}));
    }
    let one = Pretended { body: request.body.clone(), state: json!({"Running": false, "Status": "created"}) };
    world.containers.insert(name.to_owned(), one);
    (201, json!({"Id": name, "Warnings": []}))
}

fn of_container(world: &mut World, (method, name, rest): (&str, &str, &[&str]), query: &str) -> (u16, Value) {
    let error = world.start_error;
    let Some(one) = world.containers.get_mut(name) else {
        return (404, json!({"message": "No such container"}));
    };
    match (method, rest) {
        ("GET", ["json"]) => {
            let config = json!({"StopSignal": one.body["StopSignal"], "Env": one.body["Env"]});
            (200, json!({"State": one.state, "Config": config}))
        }
        ("POST", ["start"]) => match error {
            Some(words) => (400, json!({ "message": words })),
            None => {
                let words = one.body["Entrypoint"].as_array().cloned().unwrap_or_default();
                let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
                match words.as_slice() {
                    ["exit", code] => end(one, code.parse().unwrap(), false),
                    ["oom"] => end(one, 137, true),
                    [] => end(one, 0, false),
                    _ => one.state = json!({"Running": true, "Pid": 0, "StartedAt": STARTED}),
                }
                (204, Value::Null)
            }
        },
        ("POST", ["kill"]) => {
            let signal = query.trim_start_matches("signal=").to_owned();
            let is_deaf = one.body["Entrypoint"][0] == json!("deaf") && signal != "SIGKILL";
            let is_running = is_running(one);
            if is_running && !is_deaf {
                end(one, if signal == "SIGKILL" { 137 } else { 143 }, false);
            }
            world.signals.push(signal);
            if is_running { (204, Value::Null) } else { (409, json!({"message": "it is not running"})) }
        }
        ("DELETE", []) => {
            world.containers.remove(name);
            (204, Value::Null)
        }
        _ => (400, json!({"message": "nobody asks for that"})),
    }
}

/// Its output is in frames, as of a container without a terminal.
async fn attach(shared: &Shared, name: &str, mut stream: UnixStream) -> Option<()> {
    let is_made = |one: &Pretended| one.state["Status"] == json!("created");
    let is_new = shared.world.lock().unwrap().containers.get(name).is_some_and(is_made);
    let head = "HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n";
    stream.write_all(head.as_bytes()).await.ok()?;
    if is_new {
        until(shared, name, |one| !is_made(one)).await;
        for (kind, words) in [(1, "hello\n"), (2, "again\n")] {
            let frame = [&[kind, 0, 0, 0, 0, 0, 0, 6], words.as_bytes()].concat();
            stream.write_all(&frame).await.ok()?;
        }
    }
    until(shared, name, |one| !is_running(one)).await;
    Some(())
}
