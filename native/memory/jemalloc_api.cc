#include "native/memory/jemalloc_api.h"

#include <cstddef>

#include "native/memory/jemalloc_symbols.h"

namespace millpond::memory {

bool IsJemallocPreloaded() { return mallocx != nullptr; }

std::string JemallocVersion() {
  if (!IsJemallocPreloaded()) return "";
  const char* version = nullptr;
  size_t version_bytes = sizeof(version);
  const int error = mallctl("version", &version, &version_bytes, nullptr, 0);
  return error == 0 ? version : "";
}

}  // namespace millpond::memory
