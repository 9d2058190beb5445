// usage: node check.mjs FOLDER <RESOURCES.json
// Prints, as a JSON list, what is wrong with a list of resources. FOLDER is what scripts/crd-schemas prints.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const SCHEMAS = {
  "monitoring.coreos.com/v1":
    "prometheus-operator/_schemas/ComGithubPrometheusOperatorPrometheusOperatorPkgApisMonitoringV1",
  "gateway.networking.k8s.io/v1": "gateway-api/_schemas/IoK8sSigsGatewayApiApisV1",
};

// The compiled schemas say nothing of keys that they do not know. So each object is watched: a key that is never looked
// at is unknown. `unread` has these keys, by the path of their object.
function watched(value, path, unread) {
  if (value === null || typeof value !== "object") return value;
  if (!unread.has(path)) unread.set(path, new Set(Object.keys(value)));
  return new Proxy(value, {
    get(target, key) {
      unread.get(path).delete(key);
      return Object.hasOwn(target, key) ? watched(target[key], `${path}/${String(key)}`, unread) : target[key];
    },
  });
}

async function problems(folder, resource) {
  const schema = `${folder}/node_modules/@kubernetes-models/${SCHEMAS[resource.apiVersion]}${resource.kind}.js`;
  const { validate } = await import(pathToFileURL(schema));
  const unread = new Map();
  const errors = validate(watched(resource, "", unread)) ? [] : validate.errors;
  return [
    ...errors.map(({ instancePath, keyword, params }) => `${instancePath}: ${keyword} ${JSON.stringify(params)}`),
    ...[...unread].flatMap(([path, keys]) => [...keys].map((key) => `${path}/${key}: unknown`)),
  ];
}

const found = [];
for (const resource of JSON.parse(readFileSync(0, "utf8"))) {
  for (const problem of await problems(process.argv[2], resource)) {
    found.push(`${resource.kind} ${resource.metadata.name} ${problem}`);
  }
}
console.log(JSON.stringify(found));
