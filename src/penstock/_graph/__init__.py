"""Nodes, of which every dataset is made, and the functions that read them. Nothing here starts a thread or is async."""

from typing import TYPE_CHECKING

from penstock import _lazy
from penstock._graph._describe import MAX_PARTS as MAX_PARTS
from penstock._graph._describe import chain_text as chain_text
from penstock._graph._describe import escaped as escaped
from penstock._graph._describe import function_name as function_name
from penstock._graph._describe import leaf_texts as leaf_texts
from penstock._graph._describe import listed as listed
from penstock._graph._describe import tree_lines as tree_lines
from penstock._graph._describe import tree_text as tree_text
from penstock._graph._describe import verb_text as verb_text
from penstock._graph._fingerprint import Fingerprint as Fingerprint
from penstock._graph._fingerprint import all_details as all_details
from penstock._graph._fingerprint import argument_texts as argument_texts
from penstock._graph._fingerprint import cache_identity as cache_identity
from penstock._graph._fingerprint import fingerprint as fingerprint
from penstock._graph._fingerprint import function_identities as function_identities
from penstock._graph._fingerprint import note_held_values as note_held_values
from penstock._graph._fingerprint import sampler_texts as sampler_texts
from penstock._graph._fingerprint import seen_past as seen_past
from penstock._graph._fingerprint import source_identities as source_identities
from penstock._graph._gather import Batch as Batch
from penstock._graph._gather import Planned as Planned
from penstock._graph._gather import is_batch as is_batch
from penstock._graph._gather import merge_block as merge_block
from penstock._graph._gather import merge_rows as merge_rows
from penstock._graph._gather import outermost_batch as outermost_batch
from penstock._graph._gather import with_mask as with_mask
from penstock._graph._length import is_endless as is_endless
from penstock._graph._length import is_indexable as is_indexable
from penstock._graph._length import length as length
from penstock._graph._nodes import Cache as Cache
from penstock._graph._nodes import Combine as Combine
from penstock._graph._nodes import CombineFacts as CombineFacts
from penstock._graph._nodes import Combiner as Combiner
from penstock._graph._nodes import Element as Element
from penstock._graph._nodes import Filter as Filter
from penstock._graph._nodes import Fold as Fold
from penstock._graph._nodes import FoldFacts as FoldFacts
from penstock._graph._nodes import Gather as Gather
from penstock._graph._nodes import GatherFacts as GatherFacts
from penstock._graph._nodes import Integers as Integers
from penstock._graph._nodes import Map as Map
from penstock._graph._nodes import Merge as Merge
from penstock._graph._nodes import Node as Node
from penstock._graph._nodes import OnError as OnError
from penstock._graph._nodes import Origin as Origin
from penstock._graph._nodes import RandomForm as RandomForm
from penstock._graph._nodes import RandomStream as RandomStream
from penstock._graph._nodes import Read as Read
from penstock._graph._nodes import Reindex as Reindex
from penstock._graph._nodes import Remainder as Remainder
from penstock._graph._nodes import Split as Split
from penstock._graph._nodes import Step as Step
from penstock._graph._nodes import Stream as Stream
from penstock._graph._nodes import Substitute as Substitute
from penstock._graph._nodes import chain as chain
from penstock._graph._nodes import parents_of as parents_of
from penstock._graph._nodes import parts_with_names as parts_with_names
from penstock._graph._nodes import root as root
from penstock._graph._nodes import walk as walk
from penstock._graph._rewrite import choose as choose
from penstock._graph._rewrite import hold_order as hold_order
from penstock._graph._rewrite import prefixed as prefixed
from penstock._graph._rewrite import repeated as repeated
from penstock._graph._rewrite import varies_by_epoch as varies_by_epoch
from penstock._graph._rewrite import with_parents as with_parents
from penstock._graph._verify import check_depth as check_depth
from penstock._graph._verify import finite_length as finite_length
from penstock._graph._verify import need_count as need_count
from penstock._graph._verify import need_end as need_end
from penstock._graph._verify import need_finite as need_finite
from penstock._graph._verify import need_fixed_order as need_fixed_order
from penstock._graph._verify import need_function as need_function
from penstock._graph._verify import need_indexable as need_indexable
from penstock._graph._verify import need_integer as need_integer
from penstock._graph._verify import need_jax as need_jax
from penstock._graph._verify import need_name as need_name
from penstock._graph._verify import need_reach as need_reach
from penstock._graph._verify import parse_bytes as parse_bytes
from penstock._graph._verify import position_text as position_text
from penstock._graph._verify import refuse as refuse
from penstock._graph._verify import verify_cached as verify_cached
from penstock._graph._verify import verify_step as verify_step

if TYPE_CHECKING:
    from penstock._graph._apply import DROPPED as DROPPED
    from penstock._graph._apply import Context as Context
    from penstock._graph._apply import Location as Location
    from penstock._graph._apply import after_error as after_error
    from penstock._graph._apply import apply_again as apply_again
    from penstock._graph._apply import apply_block as apply_block
    from penstock._graph._apply import apply_into as apply_into
    from penstock._graph._apply import apply_one as apply_one
    from penstock._graph._apply import location_of as location_of
    from penstock._graph._apply import salt_of as salt_of
    from penstock._graph._apply import whereabouts as whereabouts
    from penstock._graph._apply import whereabouts_of as whereabouts_of
    from penstock._graph._blocks import Block as Block
    from penstock._graph._blocks import element_after_crash as element_after_crash
    from penstock._graph._blocks import elements_per_parent as elements_per_parent
    from penstock._graph._blocks import evaluate_block as evaluate_block
    from penstock._graph._blocks import handles_errors as handles_errors
    from penstock._graph._blocks import join_blocks as join_blocks
    from penstock._graph._blocks import parents_of_block as parents_of_block
    from penstock._graph._blocks import read_into as read_into
    from penstock._graph._coordinates import SeedPosition as SeedPosition
    from penstock._graph._coordinates import SeedPositions as SeedPositions
    from penstock._graph._coordinates import Upcoming as Upcoming
    from penstock._graph._coordinates import awaited_sources as awaited_sources
    from penstock._graph._coordinates import awaits as awaits
    from penstock._graph._coordinates import describe_record as describe_record
    from penstock._graph._coordinates import draws_by_epoch as draws_by_epoch
    from penstock._graph._coordinates import flushed_ordinal as flushed_ordinal
    from penstock._graph._coordinates import indices as indices
    from penstock._graph._coordinates import key_block as key_block
    from penstock._graph._coordinates import locate as locate
    from penstock._graph._coordinates import nested_ordinal as nested_ordinal
    from penstock._graph._coordinates import nested_ordinals as nested_ordinals
    from penstock._graph._coordinates import origin_in as origin_in
    from penstock._graph._coordinates import origins as origins
    from penstock._graph._coordinates import passes_below as passes_below
    from penstock._graph._coordinates import row_seed_position as row_seed_position
    from penstock._graph._coordinates import seed_position_block as seed_position_block
    from penstock._graph._coordinates import upcoming as upcoming
    from penstock._graph._coordinates import with_substitutes as with_substitutes
    from penstock._graph._differing import differing_text as differing_text
    from penstock._graph._evaluate import RowStages as RowStages
    from penstock._graph._evaluate import element_at as element_at
    from penstock._graph._evaluate import keeps as keeps
    from penstock._graph._evaluate import row_location as row_location
    from penstock._graph._evaluate import stages_of as stages_of
    from penstock._graph._explain import cache_lines as cache_lines
    from penstock._graph._explain import element_lines as element_lines
    from penstock._graph._explain import mixture_lines as mixture_lines
    from penstock._graph._explain import random_lines as random_lines
    from penstock._graph._explain import reading_text as reading_text
    from penstock._graph._flat_map import FlatMap as FlatMap
    from penstock._graph._global_draws import GlobalDraws as GlobalDraws
    from penstock._graph._inputs import inputs_at as inputs_at
    from penstock._graph._per_worker import PerWorker as PerWorker
    from penstock._graph._pictures import Colours as Colours
    from penstock._graph._pictures import block_lines as block_lines
    from penstock._graph._pictures import encoded_kind as encoded_kind
    from penstock._graph._pictures import image_tag as image_tag
    from penstock._graph._pictures import pixels_of as pixels_of
    from penstock._graph._rng import kept_globals as kept_globals
    from penstock._graph._rng import leave_accelerators as leave_accelerators
    from penstock._graph._show import Preview as Preview
    from penstock._graph._show import html_text as html_text
    from penstock._graph._show import value_text as value_text
    from penstock._graph._splitting import list_splitting_of as list_splitting_of
    from penstock._graph._unbatch import Unbatch as Unbatch
    from penstock._graph._windows import Windows as Windows
else:
    # Loaded on demand: a program that only describes a dataset evaluates nothing.
    __getattr__ = _lazy.from_modules(
        __name__,
        Context="penstock._graph._apply",
        DROPPED="penstock._graph._apply",
        Location="penstock._graph._apply",
        after_error="penstock._graph._apply",
        apply_again="penstock._graph._apply",
        apply_block="penstock._graph._apply",
        apply_into="penstock._graph._apply",
        apply_one="penstock._graph._apply",
        location_of="penstock._graph._apply",
        salt_of="penstock._graph._apply",
        whereabouts="penstock._graph._apply",
        whereabouts_of="penstock._graph._apply",
        Block="penstock._graph._blocks",
        element_after_crash="penstock._graph._blocks",
        elements_per_parent="penstock._graph._blocks",
        evaluate_block="penstock._graph._blocks",
        handles_errors="penstock._graph._blocks",
        join_blocks="penstock._graph._blocks",
        parents_of_block="penstock._graph._blocks",
        read_into="penstock._graph._blocks",
        SeedPosition="penstock._graph._coordinates",
        SeedPositions="penstock._graph._coordinates",
        Upcoming="penstock._graph._coordinates",
        awaited_sources="penstock._graph._coordinates",
        awaits="penstock._graph._coordinates",
        draws_by_epoch="penstock._graph._coordinates",
        flushed_ordinal="penstock._graph._coordinates",
        indices="penstock._graph._coordinates",
        key_block="penstock._graph._coordinates",
        locate="penstock._graph._coordinates",
        nested_ordinal="penstock._graph._coordinates",
        nested_ordinals="penstock._graph._coordinates",
        passes_below="penstock._graph._coordinates",
        row_seed_position="penstock._graph._coordinates",
        seed_position_block="penstock._graph._coordinates",
        upcoming="penstock._graph._coordinates",
        differing_text="penstock._graph._differing",
        RowStages="penstock._graph._evaluate",
        element_at="penstock._graph._evaluate",
        keeps="penstock._graph._evaluate",
        row_location="penstock._graph._evaluate",
        stages_of="penstock._graph._evaluate",
        cache_lines="penstock._graph._explain",
        element_lines="penstock._graph._explain",
        mixture_lines="penstock._graph._explain",
        random_lines="penstock._graph._explain",
        reading_text="penstock._graph._explain",
        Colours="penstock._graph._pictures",
        block_lines="penstock._graph._pictures",
        encoded_kind="penstock._graph._pictures",
        image_tag="penstock._graph._pictures",
        pixels_of="penstock._graph._pictures",
        Preview="penstock._graph._show",
        html_text="penstock._graph._show",
        value_text="penstock._graph._show",
        FlatMap="penstock._graph._flat_map",
        describe_record="penstock._graph._coordinates",
        origin_in="penstock._graph._coordinates",
        with_substitutes="penstock._graph._coordinates",
        origins="penstock._graph._coordinates",
        inputs_at="penstock._graph._inputs",
        GlobalDraws="penstock._graph._global_draws",
        PerWorker="penstock._graph._per_worker",
        kept_globals="penstock._graph._rng",
        leave_accelerators="penstock._graph._rng",
        list_splitting_of="penstock._graph._splitting",
        Unbatch="penstock._graph._unbatch",
        Windows="penstock._graph._windows",
    )
