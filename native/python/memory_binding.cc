#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <utility>

#include "native/base/thread_priority.h"
#include "native/memory/background_arena.h"
#include "native/memory/slab.h"
#include "native/pjrt/accelerator.h"
#include "native/python/binding.h"
#include "native/python/values.h"
#include "native/tf/version_load.h"

namespace millpond::python {
namespace {

namespace nb = nanobind;

void EnterBackgroundThread(Named<base::ThreadPriority> priority) {
  ThrowIfError(memory::EnterBackground(priority.value));
}

memory::SlabPoolOptions PoolOptions(int spare_slab_count) {
  memory::SlabPoolOptions options;
  options.spare_slab_count = spare_slab_count;
  return options;
}

void MakeSlabPool(PySlabPool* self, int spare_slab_count,
                  Named<base::ThreadPriority> thread_priority) {
  ThrowIfError(memory::CheckArenas());
  // The keeper works at the priority of the process if the kernel refuses this one.
  new (self) PySlabPool(PoolOptions(spare_slab_count), [priority = thread_priority.value] {
    static_cast<void>(memory::EnterBackground(priority));
  });
}

void Expect(PySlabPool& self, const std::string& owner, const PyServable& servable,
            int serving_count) {
  WithoutGil([&] {
    memory::VersionArena* const arena = servable.loaded().arena();
    if (arena != nullptr) self.pool()->Expect(owner, arena->need(), serving_count);
    servable.loaded().ExpectTables(owner, serving_count);
  });
}

void RegisterSlabPool(nb::module_& module) {
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
            WithoutGil([&] {
              self.tables()->Forget(owner);
              self.pool()->Forget(owner);
            });
          },
          nb::arg("owner"))
      .def(
          "pin_for",
          [](PySlabPool& self, const pjrt::Accelerator& accelerator) {
            WithoutGil([&] { self.pool()->PinWith(accelerator.pinned()); });
          },
          nb::arg("accelerator"))
      .def("statistics",
           [](const PySlabPool& self) {
             return WithoutGil([&] { return self.pool()->Statistics(); });
           })
      .def("table_statistics",
           [](const PySlabPool& self) {
             return WithoutGil([&] { return self.tables()->Statistics(); });
           })
      .def(
          "free_table_bytes",
          [](const PySlabPool& self, const std::string& owner) {
            return WithoutGil([&] { return self.tables()->FreeBytes(owner); });
          },
          nb::arg("owner"))
      .def("stop", [](PySlabPool& self) { WithoutGil([&] { self.Stop(); }); });
}

}  // namespace

void RegisterMemory(nb::module_& module) {
  RegisterSlabPool(module);
  module.def("interleave_slabs", &memory::InterleaveSlabs, nb::arg("nodes"));
  module.def("enter_background_thread", &EnterBackgroundThread, nb::arg("priority"));
}

}  // namespace millpond::python
