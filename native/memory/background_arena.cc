#include "native/memory/background_arena.h"

#include <sys/types.h>

#include <optional>
#include <string>

#include "native/memory/jemalloc_api.h"
#include "native/memory/jemalloc_control.h"

namespace millpond::memory {

namespace {

// Long enough that what one step of a load frees the next one takes, and faults no page in beside
// requests. Not for ever: jemalloc takes no small blocks from pages that never decay, so each swap
// would take fresh ones (0.8 MB of them for 64 requests of 26 KB that it replays).
constexpr ssize_t kDecayMs = 10'000;

std::optional<unsigned> MakeArena() {
  const std::optional<unsigned> index = ReadControl<unsigned>("arenas.create");
  if (!index) return std::nullopt;
  const std::string arena = "arena." + std::to_string(*index);
  const bool decays = WriteControl<ssize_t>(arena + ".dirty_decay_ms", kDecayMs) &&
                      WriteControl<ssize_t>(arena + ".muzzy_decay_ms", 0);
  return decays ? index : std::nullopt;
}

}  // namespace

bool UseBackgroundArena() {
  if (!IsJemallocPreloaded()) return false;
  // jemalloc has no name for an arena, so its number is remembered: made by the first thread.
  static const std::optional<unsigned> kIndex = MakeArena();
  // The blocks in the thread's cache are another arena's.
  return kIndex && CallControl("thread.tcache.flush") && WriteControl("thread.arena", *kIndex);
}

}  // namespace millpond::memory
