"""The scenarios by name: each is a function from its surroundings to a scenario."""

from collections.abc import Callable, Mapping

from benchmarks.bench import Bench
from benchmarks.macro import (
    audio,
    batch_map,
    decode_images,
    formats,
    images,
    import_time,
    jax_feed,
    mix,
    native_pool,
    ordered,
    packing,
    pipeline_noop,
    pipeline_waiting,
    random_map,
    resume,
    seeks,
    shuffle,
    shuffle_blocks,
    stack,
    tiny,
    tokens,
    transport,
    video,
)
from benchmarks.processes import big_batches, busy_trainer, kill, memory, start_stop, stragglers
from benchmarks.scenario import Scenario

SCENARIOS: Mapping[str, Callable[[Bench], Scenario]] = {
    "tiny": tiny.build,
    "tokens": tokens.build,
    "batch-map": batch_map.build,
    "packing": packing.build,
    "stack": stack.build,
    "shuffle": shuffle.build,
    "shuffle-blocks": shuffle_blocks.build,
    "random-map": random_map.build,
    "mix": mix.build,
    "ordered": ordered.build,
    "resume": resume.build,
    "transport": transport.build,
    "native-pool": native_pool.build,
    "pipeline-noop": pipeline_noop.build,
    "pipeline-waiting": pipeline_waiting.build,
    "memory": memory.build,
    "big-batches": big_batches.build,
    "stragglers": stragglers.build,
    "start-stop": start_stop.build,
    "busy-trainer": busy_trainer.build,
    "images": images.build,
    "decode-images": decode_images.build,
    "audio": audio.build,
    "video": video.build,
    "seeks": seeks.build,
    "formats": formats.build,
    "jax-feed": jax_feed.build,
    "kill": kill.build,
    "import": import_time.build,
}
