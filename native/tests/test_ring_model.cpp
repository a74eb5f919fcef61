// The claim protocol, explored exhaustively: every interleaving of owner, two workers and keeper, and a worker's death
// between any two operations. Then the same with one step broken at a time: the model must notice each.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "tests/ring_faults.hpp"
#include "tests/ring_scenario.hpp"

namespace {

using namespace ring_model;

int failures = 0;
std::uint64_t total_states = 0, total_steps = 0, deaths_asleep = 0;

void print_trace(const model::Report& report) {
    for (const std::string& step : report.trace) std::printf("    %s\n", step.c_str());
}

std::string describe(const Setup& setup) {
    char text[200];
    std::snprintf(text, sizeof text, "%u slots, %u batches of %u row blocks%s, %u workers, %u deaths%s%s%s",
                  setup.slots, setup.batches, setup.blocks, setup.merge ? " and a merge" : "", setup.workers,
                  setup.deaths, setup.cancelled < setup.batches ? ", one cancelled" : "",
                  setup.leaves ? ", one leaves" : "", setup.replaced ? "" : ", nobody replaced");
    return text;
}

void expect_sound(const Setup& setup) {
    RingScenario<SoundRing> scenario(setup);
    const model::Report report = scenario.check(40'000'000);
    deaths_asleep += scenario.deaths_asleep();
    total_states += report.states;
    total_steps += report.steps;
    std::printf("%-75s %9llu states %9llu steps  %s\n", describe(setup).c_str(),
                static_cast<unsigned long long>(report.states), static_cast<unsigned long long>(report.steps),
                report.violation.empty() ? "sound" : report.violation.c_str());
    std::fflush(stdout);
    if (report.violation.empty()) return;
    failures += 1;
    print_trace(report);
}

// Proves that the model finds faults of this kind.
template <class Broken>
void expect_caught(const char* name, const Setup& setup, bool print = false) {
    const model::Report report = RingScenario<Broken>(setup).check(40'000'000);
    std::printf("%-28s %s after %llu states\n", name,
                report.violation.empty() ? "NOT CAUGHT" : report.violation.c_str(),
                static_cast<unsigned long long>(report.states));
    std::fflush(stdout);
    if (print) print_trace(report);
    failures += report.violation.empty() ? 1 : 0;
}

void expect_faults_caught(bool print) {
    std::printf("Faults:\n");
    expect_caught<ClaimsAnyGeneration>("claims any generation", {.batches = 2, .blocks = 1, .deaths = 0}, print);
    expect_caught<ClaimsByStore>("claims by store", {.batches = 1, .blocks = 1, .deaths = 0}, print);
    expect_caught<ClaimsMergeEarly>("claims merge early", {.batches = 1, .blocks = 1, .merge = true, .deaths = 0},
                                    print);
    expect_caught<TakesTicketLate>("takes ticket late", {.batches = 1, .blocks = 1, .deaths = 0}, print);
    expect_caught<CountsSleepersEarly>("counts sleepers early", {.batches = 1, .blocks = 1, .deaths = 0}, print);
    expect_caught<AnnouncesBeforeDone>("announces before done", {.batches = 1, .blocks = 1, .deaths = 0}, print);
    expect_caught<ForgetsToWakeForMerge>(
        "forgets to wake for merge", {.batches = 1, .blocks = 1, .merge = true, .deaths = 0, .leaves = true}, print);
    expect_caught<CountsDown>("counts down", {.batches = 1, .blocks = 1}, print);
    expect_caught<ReadyWithoutMerge>("ready without merge", {.batches = 1, .blocks = 1, .merge = true, .deaths = 0},
                                     print);
    expect_caught<ArmsStateFirst>("arms state first", {.batches = 2, .blocks = 1, .deaths = 0}, print);
    expect_caught<CancelsByStore>("cancels by store", {.batches = 1, .blocks = 1, .deaths = 0, .cancelled = 0}, print);
    expect_caught<SweepsRowsFirst>("sweeps rows first",
                                   {.batches = 1, .blocks = 1, .merge = true, .deaths = 0, .cancelled = 0}, print);
    expect_caught<SweepsBeforeMarking>("sweeps before marking", {.batches = 1, .blocks = 1, .cancelled = 0}, print);
    expect_caught<ReleasesIntoDrain>("releases into drain", {.batches = 1, .blocks = 1, .cancelled = 0}, print);
    expect_caught<DrainsReleasedRowsAlone>("drains released rows alone",
                                           {.batches = 1, .blocks = 1, .merge = true, .cancelled = 0}, print);
    expect_caught<ReleasesSilently>("releases silently", {.batches = 1, .blocks = 1}, print);
    expect_caught<WakesNoSleeperAfterADeath>("wakes no sleeper after a death",
                                             {.batches = 1, .blocks = 1, .replaced = false}, print);
    expect_caught<UncountsTheDead>("uncounts the dead", {.batches = 1, .blocks = 1, .replaced = false}, print);
    expect_caught<TrustsTheDeadRinger>("trusts the dead ringer", {.batches = 1, .blocks = 1}, print);
    expect_caught<ReleasesTheLiving>("releases the living", {.batches = 1, .blocks = 1}, print);
    expect_caught<ClearsBellInWrongOrder>("clears bell in wrong order", {.batches = 2, .blocks = 1, .deaths = 0},
                                          print);
}

enum class Size { small, usual, large, all };

const Setup small_setups[] = {
    {.batches = 2, .blocks = 1, .deaths = 0},
    {.batches = 1, .blocks = 1, .merge = true},
    {.batches = 1, .blocks = 0, .merge = true},
    {.batches = 1, .blocks = 1, .cancelled = 0},
    {.batches = 1, .blocks = 0, .merge = true, .cancelled = 0},
    {.batches = 1, .blocks = 1, .replaced = false},
};

const Setup usual_setups[] = {
    {.batches = 3, .blocks = 1, .deaths = 0},
    {.batches = 2, .blocks = 0, .merge = true},
    {.batches = 2, .blocks = 1, .merge = true, .deaths = 0, .leaves = true},
    {.batches = 2, .blocks = 1, .replaced = false},
    {.batches = 1, .blocks = 1, .merge = true, .replaced = false},
};

const Setup large_setups[] = {
    {.batches = 2, .blocks = 2, .merge = true, .deaths = 0},
    {.slots = 2, .batches = 3, .blocks = 1, .deaths = 0},
    {.batches = 2, .blocks = 1},
    {.batches = 2, .blocks = 1, .cancelled = 0},
    {.batches = 1, .blocks = 2, .merge = true},
    {.batches = 1, .blocks = 1, .merge = true, .cancelled = 0},
};

const Setup huge_setups[] = {
    {.batches = 2, .blocks = 1, .merge = true},
    {.batches = 2, .blocks = 2},
    {.slots = 2, .batches = 2, .blocks = 1},
    {.batches = 2, .blocks = 1, .merge = true, .cancelled = 0},
    {.batches = 1, .blocks = 2, .merge = true, .cancelled = 0},
    {.slots = 2, .batches = 2, .blocks = 1, .merge = true, .deaths = 0},
    {.batches = 1, .blocks = 1, .deaths = 2},
    {.slots = 2, .batches = 3, .blocks = 1},
    {.batches = 2, .blocks = 2, .merge = true},
};

// A sanitizer slows the model tenfold, and checks the checker rather than the protocol: a small model is enough.
#if defined(PENSTOCK_SANITIZE_address) || defined(PENSTOCK_SANITIZE_undefined) || defined(PENSTOCK_SANITIZE_thread)
constexpr Size default_size = Size::small;
#else
constexpr Size default_size = Size::usual;
#endif

}  // namespace

// --small, --large and --all choose how much is explored, --traces prints how each fault shows.
int main(int argc, char** argv) {
    Size size = default_size;
    bool print = false;
    for (int i = 1; i < argc; ++i) {
        if (std::strcmp(argv[i], "--small") == 0) size = Size::small;
        if (std::strcmp(argv[i], "--large") == 0) size = Size::large;
        if (std::strcmp(argv[i], "--all") == 0) size = Size::all;
        if (std::strcmp(argv[i], "--traces") == 0) print = true;
    }
    std::printf("Every interleaving of owner, workers and keeper:\n");
    for (const Setup& setup : small_setups) expect_sound(setup);
    if (size >= Size::usual) {
        for (const Setup& setup : usual_setups) expect_sound(setup);
    }
    if (size >= Size::large) {
        for (const Setup& setup : large_setups) expect_sound(setup);
    }
    if (size == Size::all) {
        for (const Setup& setup : huge_setups) expect_sound(setup);
    }

    if (size != Size::small) expect_faults_caught(print);

    if (deaths_asleep == 0) {
        std::printf("no worker ever died in its sleep\n");
        failures += 1;
    }
    std::printf("%llu states, %llu steps, %llu deaths asleep; %d failure%s\n",
                static_cast<unsigned long long>(total_states), static_cast<unsigned long long>(total_steps),
                static_cast<unsigned long long>(deaths_asleep), failures, failures == 1 ? "" : "s");
    return failures == 0 ? 0 : 1;
}
