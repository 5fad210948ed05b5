//! Shapes of the production trace in `data/openb`: all shapes of its nodes, and the most frequent ones of its tasks with
//! GPU model constraints (5879 of 8152 tasks). A table instead of the files, since nothing here reads files.

/// Shape of some nodes.
pub(super) struct NodeShape {
    pub(super) n_nodes: u32,
    pub(super) cpu_milli: i64,
    pub(super) memory_mib: i64,
    pub(super) n_gpus: usize,
    pub(super) model: &'static str,
}

/// Shape of some tasks.
pub(super) struct TaskShape {
    pub(super) n_tasks: u32,
    pub(super) cpu_milli: i64,
    pub(super) memory_mib: i64,
    pub(super) n_gpus: u32,
    pub(super) gpu_milli: u32,
    pub(super) models: &'static [&'static str],
}

const fn node(
    n_nodes: u32,
    cpu_milli: i64,
    memory_mib: i64,
    n_gpus: usize,
    model: &'static str,
) -> NodeShape {
    NodeShape { n_nodes, cpu_milli, memory_mib, n_gpus, model }
}

const fn task(
    n_tasks: u32,
    cpu_milli: i64,
    memory_mib: i64,
    n_gpus: u32,
    gpu_milli: u32,
    models: &'static [&'static str],
) -> TaskShape {
    TaskShape { n_tasks, cpu_milli, memory_mib, n_gpus, gpu_milli, models }
}

/// All nodes.
pub(super) const NODES: [NodeShape; 27] = [
    node(19, 8_000, 32_768, 1, "V100M16"),
    node(3, 8_000, 61_440, 1, "P100"),
    node(2, 8_000, 61_440, 2, "P100"),
    node(107, 16_000, 122_880, 2, "P100"),
    node(10, 32_000, 65_536, 0, ""),
    node(23, 32_000, 131_072, 0, ""),
    node(28, 32_000, 131_072, 4, "V100M16"),
    node(129, 32_000, 262_144, 0, ""),
    node(9, 48_000, 376_832, 4, "V100M32"),
    node(4, 64_000, 131_072, 0, ""),
    node(8, 64_000, 262_144, 0, ""),
    node(22, 64_000, 262_144, 2, "P100"),
    node(7, 64_000, 262_144, 8, "V100M16"),
    node(22, 64_000, 524_288, 0, ""),
    node(1, 82_000, 344_064, 8, "V100M16"),
    node(30, 96_000, 393_216, 0, ""),
    node(17, 96_000, 393_216, 4, "T4"),
    node(549, 96_000, 393_216, 8, "G2"),
    node(59, 96_000, 524_288, 0, ""),
    node(1, 96_000, 786_432, 0, ""),
    node(21, 96_000, 786_432, 8, "V100M32"),
    node(1, 104_000, 196_608, 0, ""),
    node(20, 104_000, 524_288, 0, ""),
    node(387, 104_000, 524_288, 2, "T4"),
    node(3, 104_000, 786_432, 0, ""),
    node(39, 128_000, 786_432, 8, "G3"),
    node(2, 128_000, 1_048_576, 1, "A10"),
];

/// Most of the tasks.
pub(super) const TASKS: [TaskShape; 40] = [
    task(756, 3_152, 5_600, 1, 810, &[]),
    task(524, 11_300, 49_152, 1, 1_000, &[]),
    task(364, 12_500, 57_344, 0, 0, &[]),
    task(322, 11_400, 48_128, 1, 1_000, &[]),
    task(313, 3_152, 5_600, 1, 1_000, &[]),
    task(287, 11_908, 47_104, 1, 470, &[]),
    task(284, 32_000, 49_152, 0, 0, &[]),
    task(254, 8_000, 30_517, 1, 470, &[]),
    task(199, 3_152, 5_600, 1, 810, &["T4"]),
    task(163, 8_000, 30_517, 0, 0, &[]),
    task(162, 11_908, 47_104, 1, 650, &[]),
    task(160, 18_708, 64_512, 1, 1_000, &[]),
    task(159, 11_300, 49_152, 1, 1_000, &["T4"]),
    task(124, 9_810, 41_560, 1, 1_000, &[]),
    task(120, 15_400, 51_200, 0, 0, &[]),
    task(106, 15_700, 58_368, 1, 1_000, &[]),
    task(102, 11_400, 48_128, 1, 1_000, &["T4"]),
    task(101, 12_000, 24_576, 1, 1_000, &[]),
    task(95, 16_500, 51_200, 0, 0, &[]),
    task(92, 11_908, 47_104, 1, 1_000, &[]),
    task(88, 3_152, 5_600, 1, 810, &["P100"]),
    task(77, 4_000, 22_888, 1, 320, &[]),
    task(69, 8_000, 30_517, 1, 470, &["T4"]),
    task(69, 11_300, 49_152, 1, 1_000, &["G2"]),
    task(68, 3_152, 5_600, 1, 1_000, &["T4"]),
    task(66, 16_000, 32_768, 1, 1_000, &[]),
    task(66, 11_908, 47_104, 1, 470, &["T4"]),
    task(65, 8_000, 16_384, 1, 1_000, &[]),
    task(65, 4_000, 30_517, 1, 230, &[]),
    task(64, 12_000, 16_384, 1, 1_000, &[]),
    task(56, 14_200, 58_368, 1, 1_000, &[]),
    task(54, 4_000, 15_258, 1, 320, &[]),
    task(52, 4_000, 24_576, 1, 1_000, &[]),
    task(51, 4_152, 10_600, 1, 550, &[]),
    task(51, 8_000, 30_517, 1, 320, &[]),
    task(51, 3_152, 5_600, 1, 590, &[]),
    task(50, 24_200, 93_184, 1, 1_000, &[]),
    task(46, 11_908, 47_104, 1, 650, &["T4"]),
    task(43, 18_708, 64_512, 1, 1_000, &["T4"]),
    task(41, 6_000, 6_144, 1, 460, &[]),
];
