// Ends this process when another one has ended, at any point of its threads.
#pragma once

#include <vector>

namespace penstock {

// Ends this process, with exit code 1, when one of the descriptors becomes readable or its other end is closed. A
// thread waits for that, so it also happens during a call that keeps the GIL. A closed descriptor is no longer watched.
// Throws std::system_error if the system refuses a thread.
void end_when_readable(std::vector<int> descriptors);

}  // namespace penstock
