#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "native/base/clock.h"
#include "native/python/server_binding.h"
#include "native/python/values.h"
#include "native/rest/rest_service.h"

namespace millpond::python {
namespace {

namespace nb = nanobind;
using rpc::RareCall;
using rpc::Server;
using rpc::ServerOptions;

// Returns a failure code for a code from Python: UNKNOWN if the code is unknown or OK, so that a
// failure is never sent as a success.
base::Code FailureCode(int code) {
  const bool is_failure = code > 0 && code < base::kCodeCount;
  return is_failure ? static_cast<base::Code>(code) : base::Code::kUnknown;
}

std::optional<double> RemainingSeconds(const RareCall& call) {
  constexpr double kNsPerSecond = 1e9;
  const std::optional<int64_t> remaining_ns = call.RemainingNs(base::MonotonicNs());
  if (!remaining_ns) return std::nullopt;
  return static_cast<double>(*remaining_ns) / kNsPerSecond;
}

void RegisterRareCall(nb::module_& module) {
  nb::class_<RareCall> call(module, "RareCall", nb::is_final());
  AddHttp(&call);
  call.def_prop_ro("method", &RareCall::path)
      .def_prop_ro("request",
                   [](const RareCall& self) {
                     return nb::bytes(self.request().data(), self.request().size());
                   })
      .def_prop_ro("remaining_seconds", &RemainingSeconds)
      .def_prop_ro("is_wanted", &RareCall::IsWanted)
      .def_prop_ro("trace_context", &RareCall::trace_context)
      .def_prop_ro("peer", &RareCall::peer)
      .def_prop_ro("client_names", &RareCall::client_names)
      .def_prop_ro("is_forwarded", &RareCall::is_forwarded)
      .def(
          "reply",
          [](RareCall& self, nb::bytes response) {
            ThrowIfError(self.Reply({response.c_str(), response.size()}));
          },
          nb::arg("response"))
      .def(
          "fail",
          [](RareCall& self, int code, std::string message) {
            ThrowIfError(self.Fail({FailureCode(code), std::move(message)}));
          },
          nb::arg("code"), nb::arg("message"));
}

}  // namespace

void RegisterServer(nb::module_& module) {
  RegisterRareCall(module);
  nb::class_<Server> server(module, "GrpcServer", nb::is_final());
  AddHttp(&server);
  server
      .def(
          "__init__",
          [](Server* self, servable::ServingMap& map, ServerOptions options) {
            options.make_http_routes = [](const rpc::ModelMethodParts& parts,
                                          const rpc::HttpDocuments* documents,
                                          const rpc::HttpOptions& http) {
              return std::make_unique<rest::RestService>(parts, documents,
                                                         static_cast<size_t>(http.body_bytes_max));
            };
            new (self) Server(&map, std::move(options));
          },
          nb::keep_alive<1, 2>(), nb::arg("serving_map"), nb::arg("options"))
      .def("start", [](Server& self) { ThrowIfError(WithoutGil([&] { return self.Start(); })); })
      .def_prop_ro("port", &Server::port)
      .def_prop_ro("http_port", &Server::http_port)
      .def_prop_ro("connection_count", &Server::connection_count)
      .def_prop_ro("limit_counts", &Server::LimitCountsByName)
      .def(
          "take_rare_call",
          [](Server& self, double timeout_seconds) {
            auto call = WithoutGil([&] { return self.TakeRareCall(SecondsToNs(timeout_seconds)); });
            if (call == nullptr && !self.HasRareCallsToCome()) throw nb::stop_iteration();
            return call;
          },
          nb::arg("timeout_seconds"),
          // The binder cannot derive that the unique_ptr may be null.
          nb::sig("def take_rare_call(self, timeout_seconds: float) -> RareCall | None"))
      .def(
          "set_health",
          [](Server& self, const std::string& service, bool is_serving) {
            WithoutGil([&] { self.SetHealth(service, is_serving); });
          },
          nb::arg("service"), nb::arg("is_serving"))
      .def(
          "remove_health",
          [](Server& self, const std::string& service) {
            WithoutGil([&] { self.RemoveHealth(service); });
          },
          nb::arg("service"))
      .def(
          "pin_request_threads",
          [](Server& self, bool is_pinned) {
            return WithoutGil([&] { return self.PinRequestThreads(is_pinned); });
          },
          nb::arg("is_pinned"))
      .def(
          "shutdown",
          [](Server& self, double drain_seconds) {
            return WithoutGil([&] { return self.Shutdown(SecondsToNs(drain_seconds)); });
          },
          nb::arg("drain_seconds"));
}

}  // namespace millpond::python
