#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <utility>

#include "native/base/thread_priority.h"
#include "native/memory/background_arena.h"
#include "native/python/binding.h"
#include "native/tf/version_load.h"

namespace millpond::python {
namespace {

namespace nb = nanobind;
using memory::ArenaRemains;
using memory::ArenaStatistics;

base::StatusOr<base::ThreadPriority> ParsePriority(const std::string& name) {
  if (name == "idle") return base::ThreadPriority::kIdle;
  if (name == "nice") return base::ThreadPriority::kNice;
  if (name == "normal") return base::ThreadPriority::kNormal;
  return base::InvalidArgument("unknown thread priority '" + name + "'; use idle, nice or normal");
}

base::Status EnterBackground(base::ThreadPriority priority) {
  static_cast<void>(memory::UseBackgroundArena());  // no effect if jemalloc is missing
  return base::SetThreadPriority(priority);
}

void EnterBackgroundThread(const std::string& name) {
  ThrowIfError(EnterBackground(ValueOrThrow(ParsePriority(name))));
}

memory::SlabPoolOptions PoolOptions(int spare_slab_count) {
  memory::SlabPoolOptions options;
  options.spare_slab_count = spare_slab_count;
  return options;
}

void MakeSlabPool(PySlabPool* self, int spare_slab_count, const std::string& thread_priority) {
  const base::ThreadPriority priority = ValueOrThrow(ParsePriority(thread_priority));
  ThrowIfError(memory::CheckArenas());
  // The keeper works at the priority of the process if the kernel refuses this one.
  new (self) PySlabPool(PoolOptions(spare_slab_count),
                        [priority] { static_cast<void>(EnterBackground(priority)); });
}

void Expect(PySlabPool& self, const std::string& owner, const PyServable& servable,
            int serving_count) {
  WithoutGil([&] {
    memory::VersionArena* const arena = servable.loaded().arena();
    if (arena != nullptr) self.pool()->Expect(owner, arena->need(), serving_count);
  });
}

void RegisterSlabPool(nb::module_& module) {
  using Statistics = memory::SlabPoolStatistics;
  nb::class_<Statistics>(module, "SlabPoolStatistics", nb::is_final())
      .def_ro("in_use_count", &Statistics::in_use_count)
      .def_ro("in_use_bytes", &Statistics::in_use_reserved_bytes)
      .def_ro("spare_count", &Statistics::spare_count)
      .def_ro("spare_bytes", &Statistics::spare_reserved_bytes)
      .def_ro("spare_resident_bytes", &Statistics::spare_resident_bytes)
      .def_ro("surplus_resident_bytes", &Statistics::surplus_resident_bytes)
      .def_ro("quarantined_count", &Statistics::quarantined_count)
      .def_ro("quarantined_bytes", &Statistics::quarantined_reserved_bytes);
  nb::class_<PySlabPool>(module, "SlabPool", nb::is_final())
      .def("__init__", &MakeSlabPool, nb::kw_only(), nb::arg("spare_slab_count"),
           nb::arg("thread_priority"))
      .def("expect", &Expect, nb::arg("owner"), nb::arg("servable"), nb::arg("serving_count"))
      .def(
          "refill",
          [](PySlabPool& self, int64_t room_bytes) {
            return WithoutGil([&] {
              return self.pool()->Refill(static_cast<size_t>(std::max<int64_t>(0, room_bytes)));
            });
          },
          nb::arg("room_bytes"))
      .def(
          "forget",
          [](PySlabPool& self, const std::string& owner) {
            WithoutGil([&] { self.pool()->Forget(owner); });
          },
          nb::arg("owner"))
      .def("statistics",
           [](const PySlabPool& self) {
             return WithoutGil([&] { return self.pool()->Statistics(); });
           })
      .def("stop", [](PySlabPool& self) { WithoutGil([&] { self.Stop(); }); });
}

void RegisterArena(nb::module_& module) {
  nb::class_<tf::MemoryPlan>(module, "MemoryPlan", nb::is_final())
      .def_ro("parameter_bytes", &tf::MemoryPlan::parameter_bytes)
      .def_ro("slab_bytes", &tf::MemoryPlan::slab_bytes);
  nb::class_<ArenaStatistics>(module, "ArenaStatistics", nb::is_final())
      .def_ro("allocated_bytes", &ArenaStatistics::allocated_bytes)
      .def_ro("active_unused_bytes", &ArenaStatistics::active_unused_bytes)
      .def_ro("retained_bytes", &ArenaStatistics::retained_bytes)
      .def_ro("unused_bytes", &ArenaStatistics::unused_bytes)
      .def_ro("slab_resident_bytes", &ArenaStatistics::slab_resident_bytes);
  nb::class_<ArenaRemains>(module, "ArenaRemains", nb::is_final())
      .def_ro("live_bytes", &ArenaRemains::live_bytes)
      .def_prop_ro("live_blocks",
                   [](const ArenaRemains& self) {
                     std::vector<std::pair<int64_t, int64_t>> blocks;
                     for (const auto& live : self.live_blocks) {
                       blocks.emplace_back(live.block_bytes, live.count);
                     }
                     return blocks;
                   })
      .def_ro("overflow_block_count", &ArenaRemains::overflow_block_count);
}

}  // namespace

void RegisterMemory(nb::module_& module) {
  RegisterArena(module);
  RegisterSlabPool(module);
  module.def("enter_background_thread", &EnterBackgroundThread, nb::arg("priority"));
}

}  // namespace millpond::python
