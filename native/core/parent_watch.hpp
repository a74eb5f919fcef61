// Ends this process as soon as another has gone, whatever its threads are doing.
#pragma once

#include <vector>

namespace penstock {

// Ends this process, with exit code 1, when one of some descriptors becomes readable or is hung up. A thread of its own
// waits for that, so it comes in the midst of a call that keeps Python's lock, too. One that is closed is watched no
// longer. Throws std::system_error where there can be no thread.
void end_when_readable(std::vector<int> descriptors);

}  // namespace penstock
