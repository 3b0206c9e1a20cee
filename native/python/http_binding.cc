#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "native/python/server_binding.h"

namespace millpond::python {
namespace {

namespace nb = nanobind;
using rpc::RareCall;
using rpc::Server;

using ItemList = nb::typed<nb::list, nb::bytes>;
using NumberedItems = nb::typed<nb::dict, size_t, nb::bytes>;
// Headers as in ASGI: pairs of bytes, with names in lower case.
using HeaderList = nb::typed<nb::list, nb::typed<nb::tuple, nb::bytes, nb::bytes>>;

nb::bytes ToBytes(std::string_view text) { return nb::bytes(text.data(), text.size()); }

HeaderList HeadersOf(const RareCall& call) {
  HeaderList headers;
  rpc::ForEachMetadata(call.metadata(), [&](std::string_view name, std::string_view value) {
    headers.append(nb::make_tuple(ToBytes(name), ToBytes(value)));
  });
  return headers;
}

std::string_view TextOf(nb::handle bytes) {
  const auto typed = nb::borrow<nb::bytes>(bytes);
  return {typed.c_str(), typed.size()};
}

std::string FieldsOf(const HeaderList& headers) {
  std::string fields;
  for (const nb::handle pair : headers) {
    rpc::AddField(TextOf(nb::handle(pair[0])), TextOf(nb::handle(pair[1])), &fields);
  }
  return fields;
}

}  // namespace

void AddHttp(nb::class_<RareCall>* call) {
  call->def_prop_ro("http_method", [](const RareCall& self) { return self.http_method(); })
      .def_prop_ro("target", [](const RareCall& self) { return ToBytes(self.target()); })
      .def_prop_ro("headers", &HeadersOf)
      .def(
          "reply_http",
          [](RareCall& self, int status, const HeaderList& headers, nb::bytes body) {
            ThrowIfError(self.ReplyHttp(status, FieldsOf(headers), TextOf(body)));
          },
          nb::arg("status"), nb::arg("headers"), nb::arg("body"),
          // The binder cannot derive the types of the list's elements.
          nb::sig("def reply_http(self, status: int, headers: list[tuple[bytes, bytes]], "
                  "body: bytes) -> None"));
}

void SetHttpList(Server& self, const std::string& path, int status, const nb::bytes& head,
                 const ItemList& items, const nb::bytes& tail) {
  auto* const documents = self.http_documents();
  if (documents == nullptr) return;
  std::vector<std::string> texts;
  for (const nb::handle item : items) texts.emplace_back(TextOf(nb::cast<nb::bytes>(item)));
  documents->SetList(path, rpc::HttpListDocument({status, std::string(TextOf(head))},
                                                 std::move(texts), std::string(TextOf(tail))));
}

void ChangeHttpList(Server& self, const std::string& path, int status, const nb::bytes& head,
                    const NumberedItems& items) {
  auto* const documents = self.http_documents();
  if (documents == nullptr) return;
  rpc::HttpListDocument::NumberedItems changed;
  for (const auto& [number, item] : items) {
    changed.emplace_back(nb::cast<size_t>(number), TextOf(nb::cast<nb::bytes>(item)));
  }
  documents->ChangeList(path, {status, std::string(TextOf(head))}, std::move(changed));
}

void AddHttpDocuments(nb::class_<Server>* server) {
  server
      ->def(
          "set_http_document",
          [](Server& self, const std::string& path, int status, nb::bytes body) {
            if (auto* const documents = self.http_documents()) {
              documents->Set(path, {status, std::string(TextOf(body))});
            }
          },
          nb::arg("path"), nb::arg("status"), nb::arg("body"))
      .def(
          "remove_http_document",
          [](Server& self, const std::string& path) {
            if (auto* const documents = self.http_documents()) documents->Remove(path);
          },
          nb::arg("path"))
      .def("set_http_list", &SetHttpList, nb::arg("path"), nb::arg("status"), nb::arg("head"),
           nb::arg("items"), nb::arg("tail"))
      .def("change_http_list", &ChangeHttpList, nb::arg("path"), nb::arg("status"), nb::arg("head"),
           nb::arg("items"));
}

void AddHttp(nb::class_<Server>* server) {
  AddHttpDocuments(server);
  server
      ->def(
          "start_http",
          [](Server& self, const std::vector<std::string>& addresses) {
            ThrowIfError(WithoutGil([&] { return self.StartHttp(addresses); }));
          },
          nb::arg("addresses"))
      .def(
          "take_http_call",
          [](Server& self, bool is_probe, double timeout_seconds) {
            auto call = WithoutGil(
                [&] { return self.TakeHttpCall(is_probe, SecondsToNs(timeout_seconds)); });
            if (call == nullptr && !self.HasHttpCallsToCome()) throw nb::stop_iteration();
            return call;
          },
          nb::arg("is_probe"), nb::arg("timeout_seconds"),
          // The binder cannot derive that the unique_ptr may be null.
          nb::sig("def take_http_call(self, is_probe: bool, timeout_seconds: float) -> "
                  "RareCall | None"))
      .def("ask_http_to_go", &Server::AskHttpToGo)
      .def(
          "shutdown_http",
          [](Server& self, double drain_seconds) {
            return WithoutGil([&] { return self.ShutdownHttp(SecondsToNs(drain_seconds)); });
          },
          nb::arg("drain_seconds"));
}

}  // namespace millpond::python
