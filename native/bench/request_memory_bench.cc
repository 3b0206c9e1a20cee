// Measures the cost of a pair of allocate and deallocate: by RequestMemory, by jemalloc with an
// alignment, and by the C library's functions. All sizes are multiples of 64. So the cost of
// RequestMemory without its counting is malloc_free over jemalloc, and aligned_alloc_free over
// glibc. Run it with and without LD_PRELOAD=libjemalloc.so.2.
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "native/bench/measure.h"
#include "native/memory/jemalloc_api.h"
#include "native/memory/jemalloc_symbols.h"
#include "native/memory/request_memory.h"

namespace millpond::bench {
namespace {

constexpr size_t kAlignment = 64;  // As in TensorFlow.

template <typename Body>
void MeasurePair(const char* name, size_t bytes, int thread_count, const Body& body) {
  const int call_count = bytes > 16'000 ? 200'000 : 2'000'000;
  Measure((name + (" bytes=" + std::to_string(bytes))).c_str(), thread_count, call_count, body);
}

void MeasurePairs(memory::RequestMemory& request_memory, size_t bytes, int thread_count) {
  MeasurePair("request_memory", bytes, thread_count, [&](int, int) {
    void* block = request_memory.Allocate(bytes, kAlignment);
    Keep(block);
    request_memory.Deallocate(block);
  });
  if (memory::IsJemallocPreloaded()) {
    MeasurePair("mallocx_dallocx", bytes, thread_count, [&](int, int) {
      void* block = mallocx(bytes, MALLOCX_ALIGN(kAlignment));
      Keep(block);
      dallocx(block, 0);
    });
  }
  MeasurePair("aligned_alloc_free", bytes, thread_count, [&](int, int) {
    void* block = std::aligned_alloc(kAlignment, bytes);
    Keep(block);
    std::free(block);
  });
  MeasurePair("malloc_free", bytes, thread_count, [&](int, int) {
    void* block = std::malloc(bytes);
    Keep(block);
    std::free(block);
  });
}

}  // namespace
}  // namespace millpond::bench

int main() {
  const std::string version = millpond::memory::JemallocVersion();
  std::printf("allocator %s %s\n", version.empty() ? "glibc" : "jemalloc", version.c_str());
  millpond::memory::RequestMemory request_memory;
  for (const size_t bytes : {256, 4'096, 16'384, 102'400, 1'048'576}) {
    for (const int thread_count : {1, 2}) {
      millpond::bench::MeasurePairs(request_memory, bytes, thread_count);
    }
  }
}
