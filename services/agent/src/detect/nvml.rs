//! NVIDIA's management library, loaded at run time.
//!
//! A library that is loaded at run time has functions of C, whose types nobody checks, so calling them is `unsafe`. It is sound
//! because every function is declared here as NVIDIA's `nvml.h` declares it, for names with a version number that fixes the
//! layout (`_v2`, `_v3`); every pointer that is passed points to a local value of that layout which outlives the call; texts are
//! read within their buffer, up to its end at most; handles of devices are used only between `nvmlInit_v2` and
//! `nvmlShutdown`, within one call of a function here; and no function is kept beyond the library that it is from.
#![allow(unsafe_code, reason = "functions of a library in C that is loaded at run time; see above")]

use std::{
    error::Error as _,
    ffi::{c_char, c_int, c_uint, c_void},
    sync::mpsc,
    thread,
    time::Duration,
};

use libloading::{Library, Symbol};

/// Success, in NVML's words.
const SUCCESS: c_int = 0;
/// Most links of one GPU: NVML's `NVML_NVLINK_MAX_LINKS`.
const N_LINKS_MAX: c_uint = 18;
/// Most GPUs that are asked for: more than fit into a machine.
const N_GPUS_MAX: c_uint = 256;
/// NVML's `NVML_DEVICE_NAME_V2_BUFFER_SIZE`.
const N_NAME: usize = 96;

/// What the library says of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NvidiaGpu {
    /// As `00000000:17:00.0`.
    pub(super) bus: String,
    pub(super) name: String,
    /// Bytes; 0: not known.
    pub(super) memory: i64,
    /// The bus ids at the other ends of its links that are up: GPUs, or switches.
    pub(super) links: Vec<String>,
}

/// Why nothing is known from the library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// There is none.
    Absent,
    /// It does not work, and why.
    Broken(String),
}

type Handle = *mut c_void;

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Default)]
struct GpuMemory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlPciInfo_t` of version 3 of the functions that take it.
#[repr(C)]
#[derive(Default)]
struct PciInfo {
    bus_id_legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    pci_device_id: c_uint,
    pci_subsystem_id: c_uint,
    bus_id: [c_char; 32],
}

/// `nvmlUtilization_t`.
#[repr(C)]
#[derive(Default)]
struct GpuRates {
    gpu: c_uint,
    memory: c_uint,
}

type NoArguments = unsafe extern "C" fn() -> c_int;
type OfCount = unsafe extern "C" fn(*mut c_uint) -> c_int;
type OfHandle = unsafe extern "C" fn(c_uint, *mut Handle) -> c_int;
type OfName = unsafe extern "C" fn(Handle, *mut c_char, c_uint) -> c_int;
type OfMemory = unsafe extern "C" fn(Handle, *mut GpuMemory) -> c_int;
type OfRates = unsafe extern "C" fn(Handle, *mut GpuRates) -> c_int;
type OfPci = unsafe extern "C" fn(Handle, *mut PciInfo) -> c_int;
type OfLinkState = unsafe extern "C" fn(Handle, c_uint, *mut c_uint) -> c_int;
type OfLinkPci = unsafe extern "C" fn(Handle, c_uint, *mut PciInfo) -> c_int;

/// Asks the library for its GPUs, for so long at most. One that does not answer is left out, with a warning.
pub(super) fn gpus(
    name: &str,
    timeout: Duration,
    warnings: &mut Vec<String>,
) -> Result<Vec<NvidiaGpu>, Failed> {
    let (said, answer) = mpsc::channel();
    let asked = name.to_owned();
    let ask = move || {
        let mut warnings = Vec::new();
        let found = Nvml::open(&asked).and_then(|nvml| all(&nvml.library, &mut warnings));
        // Whoever asked may have given up.
        let _too_late = said.send((found, warnings));
    };
    let started = thread::Builder::new().name("nvml".to_owned()).spawn(ask);
    started.map_err(|error| Failed::Broken(error.to_string()))?;
    let Ok((found, said)) = answer.recv_timeout(timeout) else {
        // The thread stays: nothing can end a call of the driver.
        return Err(Failed::Broken(format!("it does not answer within {} s", timeout.as_secs_f32())));
    };
    warnings.extend(said);
    found
}

/// What is used of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GpuUse {
    /// Share of the time in which it worked.
    pub(crate) percent: u32,
    /// Bytes.
    pub(crate) memory: i64,
}

/// The library, ready for questions until it is dropped.
pub(crate) struct Nvml {
    library: Library,
}

impl Nvml {
    /// Loads the library and starts it.
    pub(crate) fn open(name: &str) -> Result<Self, Failed> {
        // SAFETY: the library's initialisers run, as those of every library do that a program is linked with. Which library that
        // is, the administrator says; nothing else of it is used before its functions are looked up below.
        let library = unsafe { Library::new(name) }.map_err(|error| not_loaded(name, &error))?;
        let init: Symbol<'_, NoArguments> = function(&library, "nvmlInit_v2")?;
        // It is ended with `self`, so it must be there.
        let _shutdown: Symbol<'_, NoArguments> = function(&library, "nvmlShutdown")?;
        // SAFETY: declared as in `nvml.h`; it takes nothing.
        succeeded("nvmlInit_v2", unsafe { init() })?;
        Ok(Self { library })
    }

    /// What is used now of each GPU that is found, in the order of their buses, which is that in which programs count them. One
    /// that does not say it is used for nothing.
    pub(crate) fn uses(&self) -> Vec<GpuUse> {
        let count = function::<OfCount>(&self.library, "nvmlDeviceGetCount_v2");
        let mut n: c_uint = 0;
        // SAFETY: declared as in `nvml.h`; it writes one number, to a local one.
        if count.is_err() || count.is_ok_and(|count| unsafe { count(&raw mut n) } != SUCCESS) {
            return Vec::new();
        }
        let mut uses: Vec<_> = (0..n.min(N_GPUS_MAX)).filter_map(|idx| self.use_of(idx).ok()).collect();
        uses.sort_by(|(a, _), (b, _)| a.cmp(b));
        uses.into_iter().map(|(_, used)| used).collect()
    }

    fn use_of(&self, idx: c_uint) -> Result<(String, GpuUse), Failed> {
        let (handle, bus) = located(&self.library, idx)?;
        let rates_of: Symbol<'_, OfRates> = function(&self.library, "nvmlDeviceGetUtilizationRates")?;
        let mut rates = GpuRates::default();
        // SAFETY: declared as in `nvml.h`; the handle is valid until the shutdown, and it writes one `nvmlUtilization_t`, to a
        // local one. What fails has written nothing.
        let _stays_zero = unsafe { rates_of(handle, &raw mut rates) };
        let memory = memory_of(&self.library, handle).map_or(0, |memory| memory.used);
        Ok((bus, GpuUse { percent: rates.gpu.min(100), memory: i64::try_from(memory).unwrap_or(0) }))
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        if let Ok(shutdown) = function::<NoArguments>(&self.library, "nvmlShutdown") {
            // SAFETY: declared as in `nvml.h`; it takes nothing, and no handle is used any more.
            let _nothing_to_do_about_it = unsafe { shutdown() };
        }
    }
}

fn all(library: &Library, warnings: &mut Vec<String>) -> Result<Vec<NvidiaGpu>, Failed> {
    let count: Symbol<'_, OfCount> = function(library, "nvmlDeviceGetCount_v2")?;
    let mut n: c_uint = 0;
    // SAFETY: declared as in `nvml.h`; it writes one number, to a local one.
    succeeded("nvmlDeviceGetCount_v2", unsafe { count(&raw mut n) })?;
    let mut gpus = Vec::new();
    for idx in 0..n.min(N_GPUS_MAX) {
        match one(library, idx) {
            Ok(gpu) => gpus.push(gpu),
            Err(Failed::Broken(why)) => {
                warnings.push(format!("GPU {idx} of NVIDIA's management library is left out: {why}"));
            }
            Err(Failed::Absent) => {}
        }
    }
    Ok(gpus)
}

/// A GPU by the library's number, and its bus.
fn located(library: &Library, idx: c_uint) -> Result<(Handle, String), Failed> {
    let handle_of: Symbol<'_, OfHandle> = function(library, "nvmlDeviceGetHandleByIndex_v2")?;
    let mut handle: Handle = std::ptr::null_mut();
    // SAFETY: declared as in `nvml.h`; it writes one handle, to a local one.
    succeeded("nvmlDeviceGetHandleByIndex_v2", unsafe { handle_of(idx, &raw mut handle) })?;
    let pci_of: Symbol<'_, OfPci> = function(library, "nvmlDeviceGetPciInfo_v3")?;
    let mut pci = PciInfo::default();
    // SAFETY: declared as in `nvml.h`; the handle is valid until the shutdown, and it writes one `nvmlPciInfo_t`, to a local one.
    succeeded("nvmlDeviceGetPciInfo_v3", unsafe { pci_of(handle, &raw mut pci) })?;
    Ok((handle, text(&pci.bus_id)))
}

fn memory_of(library: &Library, handle: Handle) -> Result<GpuMemory, Failed> {
    let memory_of: Symbol<'_, OfMemory> = function(library, "nvmlDeviceGetMemoryInfo")?;
    let mut memory = GpuMemory::default();
    // SAFETY: declared as in `nvml.h`; the handle is valid until the shutdown, and it writes one `nvmlMemory_t`, to a local one.
    succeeded("nvmlDeviceGetMemoryInfo", unsafe { memory_of(handle, &raw mut memory) })?;
    Ok(memory)
}

fn one(library: &Library, idx: c_uint) -> Result<NvidiaGpu, Failed> {
    let (handle, bus) = located(library, idx)?;
    let name_of: Symbol<'_, OfName> = function(library, "nvmlDeviceGetName")?;
    let mut name: [c_char; N_NAME] = [0; N_NAME];
    let n_name = c_uint::try_from(N_NAME).unwrap_or(0);
    // SAFETY: declared as in `nvml.h`; it writes at most as many characters as it is told, to a local buffer of that length.
    succeeded("nvmlDeviceGetName", unsafe { name_of(handle, name.as_mut_ptr(), n_name) })?;
    let memory = i64::try_from(memory_of(library, handle)?.total).unwrap_or(0);
    Ok(NvidiaGpu { bus, name: text(&name), memory, links: links(library, handle) })
}

/// The other ends of the links that are up. A library or GPU without links has none.
fn links(library: &Library, handle: Handle) -> Vec<String> {
    let state_of = function::<OfLinkState>(library, "nvmlDeviceGetNvLinkState");
    let remote_of = function::<OfLinkPci>(library, "nvmlDeviceGetNvLinkRemotePciInfo_v2");
    let (Ok(state_of), Ok(remote_of)) = (state_of, remote_of) else { return Vec::new() };
    let mut ends = Vec::new();
    for link in 0..N_LINKS_MAX {
        let mut is_up: c_uint = 0;
        // SAFETY: declared as in `nvml.h`; the handle is valid until the shutdown, and it writes one number, to a local one.
        let answer = unsafe { state_of(handle, link, &raw mut is_up) };
        if answer != SUCCESS || is_up == 0 {
            continue;
        }
        let mut pci = PciInfo::default();
        // SAFETY: declared as in `nvml.h`; it writes one `nvmlPciInfo_t`, to a local one.
        if unsafe { remote_of(handle, link, &raw mut pci) } == SUCCESS {
            ends.push(text(&pci.bus_id));
        }
    }
    ends
}

fn function<'a, T>(library: &'a Library, name: &str) -> Result<Symbol<'a, T>, Failed> {
    // SAFETY: every caller asks for the type that `nvml.h` gives the function of this name, and the symbol borrows the library.
    unsafe { library.get(name.as_bytes()) }.map_err(|_| Failed::Broken(format!("it has no function {name}")))
}

/// Tells a library that does not exist from one that exists and cannot be loaded.
fn not_loaded(name: &str, error: &libloading::Error) -> Failed {
    let why = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    if why.contains(name) && why.contains("No such file") { Failed::Absent } else { Failed::Broken(why) }
}

fn succeeded(name: &str, answer: c_int) -> Result<(), Failed> {
    let why = match answer {
        SUCCESS => return Ok(()),
        3 => "not supported",
        4 => "no permission",
        9 => "the driver is not loaded",
        15 => "the GPU has fallen off the bus",
        18 => "the driver and the library are of different versions",
        999 => "unknown error",
        _ => "error",
    };
    Err(Failed::Broken(format!("{name}: {why} ({answer})")))
}

/// A text in a buffer, up to its first zero or its end.
fn text(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().take_while(|c| **c != 0).map(|c| c.to_ne_bytes()[0]).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
