#include "native/memory/background_arena.h"

#include <sys/types.h>

#include <optional>
#include <string>

#include "native/memory/jemalloc_api.h"
#include "native/memory/jemalloc_control.h"

namespace millpond::memory {

namespace {

// Long enough for one step of a load to reuse the pages that the step before has freed, without
// page faults beside requests. Not infinite: jemalloc takes no small blocks from pages that never
// decay. Each swap would then take fresh pages (0.8 MB for 64 replayed requests of 26 KB).
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
  // Made by the first thread. jemalloc has no names for arenas, so the number is kept.
  static const std::optional<unsigned> kIndex = MakeArena();
  // Flushes the thread's cache, whose blocks belong to another arena.
  return kIndex && CallControl("thread.tcache.flush") && WriteControl("thread.arena", *kIndex);
}

base::Status EnterBackground(base::ThreadPriority priority) {
  static_cast<void>(UseBackgroundArena());
  return base::SetThreadPriority(priority);
}

}  // namespace millpond::memory
