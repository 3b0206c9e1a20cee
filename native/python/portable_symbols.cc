#include <pthread.h>

#include <condition_variable>
#include <cstdio>
#include <mutex>

// The linker's --wrap sends the module's references to two symbols to these definitions, so that a
// wheel runs on systems that are older than the one that built it.
//
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" {

// libnghttp2.a is compiled for executables: its read of `stderr` cannot be linked into a shared
// library. All of the module reads this copy instead, nanobind's warnings too.
extern std::FILE* __real_stderr;
__attribute__((visibility("hidden"))) std::FILE* __wrap_stderr = __real_stderr;

// libstdc++ of GCC 12 exports this function under a new version (GLIBCXX_3.4.30), which GCC 11's,
// for example that of RHEL 9, does not have. Waits as libstdc++ does.
__attribute__((visibility("hidden"))) void
__wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(
    std::condition_variable* self, std::unique_lock<std::mutex>& lock) noexcept {
  pthread_cond_wait(self->native_handle(), lock.mutex()->native_handle());
}

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
