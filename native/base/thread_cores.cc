#include "native/base/thread_cores.h"

#include <sched.h>

#include <memory>
#include <string>
#include <system_error>

namespace millpond::base {
namespace {

// The most cores of a machine (CONFIG_NR_CPUS goes up to 8,192). cpu_set_t ends at 1,024.
constexpr int kCoreCountMax = 8'192;

class CoreSet {
 public:
  CoreSet() : set_(CPU_ALLOC(kCoreCountMax)) { CPU_ZERO_S(size_bytes(), set_); }
  ~CoreSet() { CPU_FREE(set_); }
  CoreSet(const CoreSet&) = delete;
  CoreSet& operator=(const CoreSet&) = delete;

  static size_t size_bytes() { return CPU_ALLOC_SIZE(kCoreCountMax); }
  cpu_set_t* get() { return set_; }
  void Add(int core) { CPU_SET_S(core, size_bytes(), set_); }
  bool Has(int core) const { return CPU_ISSET_S(core, size_bytes(), set_); }

 private:
  cpu_set_t* const set_;
};

}  // namespace

std::vector<int> AllowedCores() {
  CoreSet set;
  std::vector<int> cores;
  if (sched_getaffinity(0, CoreSet::size_bytes(), set.get()) != 0) return cores;
  for (int core = 0; core < kCoreCountMax; ++core) {
    if (set.Has(core)) cores.push_back(core);
  }
  return cores;
}

Status RestrictToCores(pthread_t thread, const std::vector<int>& cores) {
  CoreSet set;
  for (const int core : cores) set.Add(core);
  const int error = pthread_setaffinity_np(thread, CoreSet::size_bytes(), set.get());
  if (error == 0) return {};
  return InvalidArgument("the kernel refused to restrict a thread to " +
                         std::to_string(cores.size()) +
                         " cores: " + std::generic_category().message(error));
}

}  // namespace millpond::base
