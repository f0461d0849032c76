"""Quota: what is short, and by how much (L3)."""

from __future__ import annotations

from mintyard.domain.errors.families import Exit, Refused


class QuotaExhausted(Refused):
    code = "quota_exhausted"
    status = 402
    exit_status = Exit.QUOTA
    message = "{account} is short of {short} {unit}: the request needs {needed}, {left} is left."
    remedy = "Ask for a grant of at least {short} {unit} to {account}, or ask for less.{later}"


class CeilingReached(Refused):
    code = "ceiling_reached"
    status = 402
    exit_status = Exit.QUOTA
    message = "The token's ceiling is {limit} {unit}; {used} is used, the request needs {needed}, so {short} is short."
    remedy = "Use a token with a higher ceiling, or ask for less."


class WrongResourceType(Refused):
    code = "wrong_resource_type"
    status = 402
    exit_status = Exit.QUOTA
    message = "Nothing on {account} or above it pays for {unit}."
    remedy = "Grant {unit} or money to {account} or an account above it."


class BudgetTooSmall(Refused):
    code = "budget_too_small"
    status = 402
    exit_status = Exit.QUOTA
    message = "The job may cost {cost}, its budget is {budget}."
    remedy = "Raise the budget, or lower resources or time limit."


class NeverWithinQuota(Refused):
    code = "never_within_quota"
    status = 422
    exit_status = Exit.INFEASIBLE
    message = "{limit} never lets more than {most} {unit} run at once; the job asks for {asked}."
    remedy = "Ask for less, use another queue, or have the limit raised."
