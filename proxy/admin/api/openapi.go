package api

import _ "embed"

// OpenAPI is the description of the API in the format OpenAPI 3.0, as JSON.
//
//go:embed openapi.json
var OpenAPI []byte

// ClusterOpenAPI describes ClusterRoutes in the same way.
//
//go:embed cluster.json
var ClusterOpenAPI []byte
