-- +goose Up
ALTER TABLE work_units VALIDATE CONSTRAINT work_units_on_denied_check;
